//! NVMe/TCP over TLS 1.3: our target with a host whose TLS is another one, our both ends, and the commands.

mod commands;
mod concatenation;
mod ends;
mod host_add;
mod support;
mod target;

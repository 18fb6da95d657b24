//! NVMe/TCP over TLS, protected in this process: both ends in one thread, and peers that are none of ours.

mod ends;
mod hostile;
mod raw;
mod records;
mod support;
mod worlds;

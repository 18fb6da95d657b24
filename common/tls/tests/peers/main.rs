//! Our ends against OpenSSL and GnuTLS, over the loopback interface.

mod gnutls;
mod openssl;
mod support;

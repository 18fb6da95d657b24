//! The engine of NVMe/TCP from outside: both ends against each other, and against what no honest peer sends.

mod attacks;
mod hostile;
mod pair;
mod support;

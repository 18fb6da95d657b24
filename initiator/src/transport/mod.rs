//! How capsules and data travel. The rest of the crate knows only what [`rdma::RdmaQueue`] offers.

pub(crate) mod rdma;

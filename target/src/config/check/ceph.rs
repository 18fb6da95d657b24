//! `[ceph]`, or several tables `[[ceph]]`: the clusters that have images.

use ringfab_rbd::ClusterConfig;
use toml::de::DeTable;

use super::process::absolute_path;
use super::{Errors, Reader, Unique};
use crate::config::backing::without_cluster;
use crate::config::{Config, RbdBacking};

pub(super) fn clusters(root: &Reader<'_>, errors: &mut Errors<'_>) -> Vec<ClusterConfig> {
    let is_one = root.any("ceph").is_some_and(|value| value.get_ref().is_table());
    let readers = match is_one {
        true => root.table("ceph", errors).into_iter().collect(),
        false => root.tables("ceph", errors),
    };
    let mut names = Unique::new();
    readers.into_iter().map(|reader| cluster(reader, &mut names, errors)).collect()
}

fn cluster(reader: Reader<'_>, names: &mut Unique<String>, errors: &mut Errors<'_>) -> ClusterConfig {
    let name = reader.string("name", errors);
    let span = name.as_ref().map_or_else(|| reader.span().clone(), |name| name.span.clone());
    let name = name.map_or_else(|| RbdBacking::CLUSTER.to_owned(), |name| name.value);
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
        errors.add(&span, reader.key("name"), "must be letters, digits, and - _ .");
    }
    names.insert(name.clone(), &span, reader.key("name"), errors);
    let conf = absolute_path(&reader, "conf", errors);
    let user = reader.string("user", errors).map(|user| user.value);
    let keyring = absolute_path(&reader, "keyring", errors);
    reader.finish(errors);
    ClusterConfig { name, conf, user, keyring }
}

/// Each image is of a cluster that is there.
pub(super) fn are_known(document: &DeTable<'_>, config: &Config, errors: &mut Errors<'_>) {
    for message in without_cluster(config) {
        let span = document.get("ceph").map_or(0..0, toml::Spanned::span);
        errors.add(&span, "ceph".to_owned(), message);
    }
}

//! What stands at the end of each command's help: examples that can be pasted, and how sizes are written. A test parses
//! every example.

/// The end of a help text, of lines of examples and perhaps a note.
macro_rules! examples {
    ($($line:literal),+ $(; $note:ident)?) => {
        concat!("Examples:", $("\n  ", $line),+ $(, "\n\n", note!($note))?)
    };
}

macro_rules! note {
    (SIZE) => {
        "SIZE is a number of bytes, or has a unit: 4k, 1MiB, 2GiB (powers of 1024), 2GB (of 1000)."
    };
}

/// Of `serve`.
pub const SERVE: &str =
    examples!("ringfab-target serve", "ringfab-target serve --config target.toml --log-format json");
/// Of `check`.
pub const CHECK: &str =
    examples!("ringfab-target check", "ringfab-target check --quiet --config target.toml");
/// Of `doctor`.
pub const DOCTOR: &str =
    examples!("ringfab-target doctor", "ringfab-target doctor --json --config target.toml");
/// Of `namespace`.
pub const NAMESPACE: &str = examples!(
    "ringfab-target namespace list",
    "ringfab-target namespace add /srv/ringfab/disk.img",
    "ringfab-target namespace remove 2"
);
/// Of `subsystem`.
pub const SUBSYSTEM: &str = examples!(
    "ringfab-target subsystem add nqn.2026-11.com.example:new --allow-any-host",
    "ringfab-target subsystem remove nqn.2026-11.com.example:new"
);
/// Of `host`.
pub const HOST: &str = examples!(
    "ringfab-target host add nqn.2026-11.com.example:host-1 --with-keys --tls",
    "ringfab-target host allow nqn.2026-11.com.example:host-1",
    "ringfab-target host kick nqn.2026-11.com.example:host-1"
);
/// Of `listener`.
pub const LISTENER: &str = examples!(
    "ringfab-target listener add 192.0.2.5 --transport tcp",
    "ringfab-target listener remove 192.0.2.5:4420"
);
/// Of `ana`.
pub const ANA: &str =
    examples!("ringfab-target ana show", "ringfab-target ana set 1 inaccessible --listener 192.0.2.5:4420");
/// Of `freeze`.
pub const FREEZE: &str = examples!(
    "ringfab-target freeze 1 -- lvcreate --snapshot --name disk-monday disks/disk",
    "ringfab-target freeze 1 2 --for 3s -- rbd snap create rbd/one@monday"
);
/// Of `log`.
pub const LOG: &str =
    examples!("ringfab-target log debug", "ringfab-target log 'info,ringfab_target::admin=debug'");
/// Of `reload`.
pub const RELOAD: &str = examples!("ringfab-target reload --dry-run", "ringfab-target reload");
/// Of `config`.
pub const CONFIG: &str = examples!("ringfab-target config", "ringfab-target config --save");
/// Of `status`.
pub const STATUS: &str = examples!("ringfab-target status", "ringfab-target status --json");
/// Of `top`.
pub const TOP: &str =
    examples!("ringfab-target top", "ringfab-target top --show namespaces --sort read/s --interval 5");

pub(super) const NAMESPACE_LIST: &str =
    examples!("ringfab-target namespace list", "ringfab-target namespace list --json");
pub(super) const NAMESPACE_ADD: &str = examples!(
    "ringfab-target namespace add /srv/ringfab/disk.img",
    "ringfab-target namespace add --memory 1GiB --block-bytes 4096",
    "ringfab-target namespace add /dev/sdb --nsid 7 --read-only \\\n      \
     --subsystem nqn.2026-11.com.example:disks"; SIZE
);
pub(super) const NAMESPACE_REMOVE: &str = examples!(
    "ringfab-target namespace remove 2",
    "ringfab-target namespace remove 2 --subsystem nqn.2026-11.com.example:disks"
);
pub(super) const NAMESPACE_REOPEN: &str = examples!("ringfab-target namespace reopen 1");
pub(super) const NAMESPACE_RESIZE: &str =
    examples!("ringfab-target namespace resize 2", "ringfab-target namespace resize 2 --size 20GiB"; SIZE);
pub(super) const NAMESPACE_LIMIT: &str = examples!(
    "ringfab-target namespace limit 2 --read-iops 10000 --write-bytes-per-s 100MiB",
    "ringfab-target namespace limit 2"; SIZE
);
pub(super) const NAMESPACE_HOSTS: &str = examples!(
    "ringfab-target namespace hosts 2 --host nqn.2026-11.com.example:host-1",
    "ringfab-target namespace hosts 2 --all"
);
pub(super) const SUBSYSTEM_ADD: &str = examples!(
    "ringfab-target subsystem add nqn.2026-11.com.example:new --allow-any-host",
    "ringfab-target subsystem add nqn.2026-11.com.example:new \\\n      \
     --host nqn.2026-11.com.example:host-1 \\\n      \
     --host nqn.2026-11.com.example:host-2"
);
pub(super) const SUBSYSTEM_REMOVE: &str =
    examples!("ringfab-target subsystem remove nqn.2026-11.com.example:new");
pub(super) const HOST_ADD: &str = examples!(
    "ringfab-target host add nqn.2026-11.com.example:host-1 --with-keys",
    "ringfab-target host add nqn.2026-11.com.example:host-1 --with-keys --tls \\\n      \
     --subsystem nqn.2026-11.com.example:disks"
);
pub(super) const HOST_REKEY: &str = examples!(
    "ringfab-target host rekey nqn.2026-11.com.example:host-1",
    "ringfab-target host rekey nqn.2026-11.com.example:host-1 \\\n      \
     --until 2026-12-31T00:00:00Z"
);
pub(super) const HOST_ALLOW: &str = examples!(
    "ringfab-target host allow nqn.2026-11.com.example:host-1",
    "ringfab-target host allow nqn.2026-11.com.example:host-1 \\\n      \
     --subsystem nqn.2026-11.com.example:disks"
);
pub(super) const HOST_DENY: &str = examples!("ringfab-target host deny nqn.2026-11.com.example:host-1");
pub(super) const HOST_KICK: &str = examples!("ringfab-target host kick nqn.2026-11.com.example:host-1");
pub(super) const HOST_REVOKE: &str = examples!("ringfab-target host revoke nqn.2026-11.com.example:host-1");
pub(super) const HOST_SET: &str = examples!(
    "ringfab-target host set nqn.2026-11.com.example:host-1 --shares 200",
    "ringfab-target host set nqn.2026-11.com.example:host-1 --read-bytes-per-s 1GiB"; SIZE
);
pub(super) const LISTENER_ADD: &str = examples!(
    "ringfab-target listener add 192.0.2.5 --transport tcp",
    "ringfab-target listener add 192.0.2.5 --transport tcp --tls required",
    "ringfab-target listener add '[::]' --port 4421 --provider iwarp"
);
pub(super) const LISTENER_DRAIN: &str = examples!("ringfab-target listener drain 192.0.2.5:4420");
pub(super) const ANA_SET: &str = examples!(
    "ringfab-target ana set 1 inaccessible --listener 192.0.2.5:4420",
    "ringfab-target ana set 1 optimized"
);
pub(super) const ANA_SHOW: &str = examples!("ringfab-target ana show");
pub(super) const LISTENER_REMOVE: &str = examples!("ringfab-target listener remove 192.0.2.5:4420");

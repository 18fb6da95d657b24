//! Exports of `ringfab nbd`, as programs that are not ours use them: on controllers that cannot do everything, and when
//! their namespaces become other disks.

mod allocation;
mod announced;
mod programs;
mod replaced;

use ringfab_tests::Service;

/// Serves all namespaces of a subsystem.
fn serve(url: &str) -> Service {
    Service::start("ringfab", |folder| {
        let socket = folder.join("socket").display().to_string();
        ["nbd", url, "--socket", &socket].map(str::to_owned).to_vec()
    })
}

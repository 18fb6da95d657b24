//! The page in a browser, with and without scripts.

use std::fs;
use std::process::{Command, Stdio};

use ringfab_tests::{have, not_run, run_bounded, wait_until};

use crate::target::{HOST, Seen};

/// A host whose name would change the page if it were more than text.
const EVIL: &str = "nqn.2026-11.org.ringfab:<script>document.title='changed'</script>";

/// A headless browser's arguments, with a profile of its own.
fn arguments(profile: &str, scripts: bool) -> Vec<String> {
    let all = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"];
    let mut all = all.map(str::to_owned).to_vec();
    all.push(format!("--user-data-dir={profile}"));
    if !scripts {
        all.push("--blink-settings=scriptEnabled=false".to_owned());
    }
    all
}

fn browse(arguments: &[String]) -> String {
    run_bounded(60, "chromium", &arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Whether the browser starts here at all: a system may not let it.
fn browser() -> bool {
    let started = have("chromium")
        && Command::new("chromium")
            .arg("--version")
            .stdout(Stdio::null())
            .status()
            .is_ok_and(|end| end.success());
    if !started {
        not_run("the page in a browser: chromium is not installed");
    }
    started
}

#[test]
fn a_browser_shows_the_page_with_and_without_scripts() {
    if !browser() {
        return;
    }
    let target = Seen::start();
    let (_host, _evil) = (target.worked(), target.attach(EVIL));
    wait_until("the page has both", || {
        let page = target.get("/", "");
        page.contains(HOST) && page.contains("&lt;script&gt;")
    });
    let url = format!("http://{}/", target.address());
    let profile = target.service.path("browser").display().to_string();
    let mut dump = arguments(&profile, true);
    dump.extend(["--dump-dom".to_owned(), url.clone()]);
    let page = browse(&dump);
    assert!(page.contains("<title>Ringfab</title>") && page.contains(HOST), "{page}");
    assert!(page.contains("&lt;script&gt;document.title='changed'&lt;/script&gt;"), "{page}");
    assert!(page.contains("<svg") && !page.contains("<script"), "{page}");
    // Without scripts this browser dumps nothing, but it draws.
    for scripts in [true, false] {
        let picture = target.service.path("page.png");
        let mut shot = arguments(&profile, scripts);
        shot.push(format!("--screenshot={}", picture.display()));
        shot.extend(["--window-size=1280,900".to_owned(), url.clone()]);
        browse(&shot);
        let bytes = fs::read(&picture).expect("a picture");
        // Nothing but white would be a few kilobytes.
        assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 20_000, "{} bytes", bytes.len());
    }
}

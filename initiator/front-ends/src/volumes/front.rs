//! The process that the user waits for: it starts the keeper and says what the keeper reports.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use ringfab_base::VisiblePath as _;
use ringfab_process::log;
use serde_json::json;

use super::keeper::{News, is_taken};
use super::plan::{Plan, Taken, refuse_keys};
use super::{MountArgs, fstab, remount};
use crate::context::{Context, Usage};
use crate::interrupt::Cancelled;
use crate::mounts::device;
use crate::mounts::holders::Mount;
use crate::output;
use crate::registry::{self, Facts, Kind};

const POLL: Duration = Duration::from_millis(50);
/// A step that takes longer is named.
const SAY: Duration = Duration::from_secs(2);
/// How long the keeper may take to undo everything.
const UNDO: Duration = Duration::from_secs(60);

/// Mounts in the background.
pub(super) fn mount(args: &MountArgs, context: &Context) -> Result<()> {
    refuse_keys(super::arguments::of_this_process()?.iter().map(|text| text.to_string_lossy().into_owned()))?;
    let plan = Plan::new(args)?;
    if args.helper {
        fstab::warn(&plan.directory);
    }
    if args.fake {
        return Ok(());
    }
    if remount::is_wanted(&args.options) {
        return remount::remount(&plan);
    }
    match plan.check_machine() {
        Err(_) if args.helper && is_there(&plan) => {
            // `mount -a` asks for what is there again and again.
            log::say(&format!("{} is mounted already", plan.directory.visible()));
            return Ok(());
        }
        // What a killed keeper has left is taken away by the next one.
        Err(_) if is_left(&plan)? => {}
        checked => checked?,
    }
    if is_taken(&plan.name)? {
        plan.claim()?;
    }
    // A signal ends it when everything is undone; a second one at once.
    context.interrupt.serve();
    let mut keeper = start_keeper()?;
    let result = wait(&mut keeper, args, context);
    if result.is_err() {
        undone(&mut keeper)?;
    }
    result
}

/// Whether it is mounted from this address, by a keeper that lives.
fn is_there(plan: &Plan) -> bool {
    let address = plan.connect.url.to_string();
    let is_same = |error: anyhow::Error| {
        error.downcast_ref::<Taken>().is_some_and(|taken| taken.is_mounted_from(&address))
    };
    plan.claim().err().is_some_and(is_same)
}

/// Whether what is mounted there is of a keeper that was killed.
fn is_left(plan: &Plan) -> Result<bool> {
    let is_dead = |found: &registry::Found| {
        let facts = &found.facts;
        facts.kind == Kind::Mount && facts.directory.as_ref() == Some(&plan.directory) && !found.is_living()
    };
    let device =
        registry::entries()?.iter().find(|found| is_dead(found)).and_then(|found| found.facts.device.clone());
    let mounted = Mount::at(&plan.directory);
    Ok(device::is_lost_at(&plan.directory)
        || device.zip(mounted).is_some_and(|(device, mount)| *device == *mount.source))
}

fn start_keeper() -> Result<Child> {
    let mut command = Command::new(std::env::current_exe().context("find this program")?);
    // A copy of this program that is called as mount(8) calls its helper is that helper.
    command.arg0("ringfab");
    command.args(super::arguments::of_this_process()?).arg("--keeper");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("start the process in the background")?;
    if let Some(mut stderr) = child.stderr.take() {
        // Until it lets go of us.
        let pass = move || std::io::copy(&mut stderr, &mut std::io::stderr());
        std::thread::Builder::new().name("log of keeper".to_owned()).spawn(pass).context("start a thread")?;
    }
    Ok(child)
}

/// Takes what the keeper reports until it is mounted.
fn wait(keeper: &mut Child, args: &MountArgs, context: &Context) -> Result<()> {
    let news = listen(keeper)?;
    let (mut doing, mut since, mut said) = ("starting".to_owned(), Instant::now(), false);
    loop {
        context.interrupt.check()?;
        match news.recv_timeout(POLL) {
            Ok(News::Doing(what)) => (doing, since, said) = (what, Instant::now(), false),
            Ok(News::Mounted { text, facts }) => {
                announce(args, context, &text, &facts);
                return Ok(());
            }
            Ok(News::Failed { cancelled: true, .. }) => return Err(Cancelled.into()),
            Ok(News::Failed { error, usage: true, .. }) => return Err(Usage(error).into()),
            Ok(News::Failed { error, .. }) => return Err(anyhow!(error)),
            Err(RecvTimeoutError::Timeout) if !said && since.elapsed() >= SAY => {
                said = true;
                log::say(&format!("ringfab: {doing} ..."));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let status = keeper.wait().context("wait for the process in the background")?;
                bail!("the process in the background has ended ({status}) while {doing}");
            }
        }
    }
}

fn listen(keeper: &mut Child) -> Result<Receiver<News>> {
    let stdout = keeper.stdout.take().context("the output of the process in the background")?;
    let (sender, news) = channel();
    let read = move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(one) => {
                    if sender.send(one).is_err() {
                        return;
                    }
                }
                Err(error) => tracing::warn!(%error, "the process in the background says `{line}`"),
            }
        }
    };
    std::thread::Builder::new().name("keeper".to_owned()).spawn(read).context("start a thread")?;
    Ok(news)
}

/// It is mounted, whether or not somebody takes that.
fn announce(args: &MountArgs, context: &Context, text: &str, facts: &Facts) {
    if !args.helper {
        output::announce(context.json, || json!({ "mounted": facts.document() }), || text.to_owned());
    }
}

/// Has the keeper undo everything, and waits for that.
fn undone(keeper: &mut Child) -> Result<ExitStatus> {
    drop(keeper.stdin.take());
    let (until, mut said) = (Instant::now() + UNDO, false);
    let begun = Instant::now();
    while Instant::now() < until {
        if let Some(status) = keeper.try_wait().context("wait for the process in the background")? {
            return Ok(status);
        }
        if !said && begun.elapsed() >= SAY {
            said = true;
            log::say("ringfab: undoing what was done so far ...");
        }
        std::thread::sleep(POLL);
    }
    bail!("process {} in the background does not end; `ringfab list` shows what is left", keeper.id())
}

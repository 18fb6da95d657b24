//! The process that has a mount: the FUSE server, and the watch over what is on it.
//!
//! It runs in the background, where `ringfab mount` waits for what it reports, or in the foreground for a service
//! manager. As long as nothing is mounted, whatever ends it or its caller undoes everything.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use nix::sys::signal::Signal;
use ringfab_base::{VisiblePath as _, shell_word};
use ringfab_initiator::Namespace;
use ringfab_initiator::blocking::Controller;

use super::child::{Bond, Running};
use super::doorbell::Doorbell;
use super::leftovers::{self, Busy};
use super::plan::Plan;
use super::step::{Done, Outcome};
use super::watch::Watch;
use super::{MountArgs, child};
use crate::advice::Advised;
use crate::context::Context;
use crate::failures;
use crate::fuse::{self, FuseArgs, disk_file};
use crate::interrupt::{Cancelled, Interrupt};
use crate::made_directories::{MadeDirectories, OpenTo};
use crate::mounts::device;
use crate::mounts::holders::Mount;
use crate::namespaces::only_namespace;
use crate::quantity::Bytes;
use crate::ready::{self, Ready};
use crate::registry::{self, Claim, Ended, Entry, Facts, Found, Kind, Standing};

pub(super) use report::News;
use report::Report;

mod report;

/// Threads of the FUSE server that wait for I/O.
const THREADS: u16 = 16;
/// From one attempt to attach to the next.
const RETRY: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(20);
/// How long the unmount of what nobody has used yet may take.
const UNDO: Duration = Duration::from_secs(15);
/// Why a service ends by itself.
const GIVEN_UP: &str = "the controller was given up";
/// The largest logical block of a loop device.
const BLOCK_BYTES_MAX: u32 = 4096;
/// How often a service manager is told that a long step goes on, and for how long it shall wait.
const EXTEND: Duration = Duration::from_secs(20);

/// Mounts, keeps the mount, and ends with it.
pub(super) fn keep(args: &MountArgs, context: &Context) -> Result<()> {
    let report = Report::new(args.keeper);
    let kept = Keeper::start(args, context, report.clone()).and_then(|keeper| keeper.keep());
    match kept {
        // Whoever waits says so.
        Err(error) if report.failed(&error) => Ok(()),
        result => result,
    }
}

/// What `ringfab list` shows of the mount, and its entry there.
struct Noted {
    entry: Entry,
    facts: Facts,
}

/// What the process has while it mounts.
struct Keeper<'a> {
    args: &'a MountArgs,
    plan: Plan,
    report: Report,
    /// Of the FUSE server: it ends last.
    inner: Interrupt,
    /// Whether the watch takes the signals.
    watched: Arc<AtomicBool>,
    doorbell: Arc<Doorbell>,
    /// Whether it ends because the controller was given up.
    given_up: Arc<AtomicBool>,
    /// Whether it has ended without its target.
    abandoned: Arc<AtomicBool>,
}

impl<'a> Keeper<'a> {
    fn start(args: &'a MountArgs, context: &Context, report: Report) -> Result<Self> {
        let plan = Plan::new(args)?;
        let inner = Interrupt::idle();
        let watched = Arc::new(AtomicBool::new(false));
        let doorbell = Arc::new(Doorbell::new().context("a pipe")?);
        let (end, is_watched, bell) = (inner.clone(), watched.clone(), doorbell.clone());
        context.interrupt.handle_signals(move |signal| {
            bell.ring(signal);
            if !is_watched.load(Ordering::Acquire) {
                end.raise(Signal::SIGINT);
            }
        });
        let (end, is_watched) = (inner.clone(), watched.clone());
        report.on_caller_gone(move || {
            if !is_watched.load(Ordering::Acquire) {
                end.raise(Signal::SIGINT);
            }
        })?;
        std::env::set_current_dir("/").context("enter /")?;
        Ok(Self {
            args,
            plan,
            report,
            inner,
            watched,
            doorbell,
            given_up: Arc::default(),
            abandoned: Arc::default(),
        })
    }

    fn keep(self) -> Result<()> {
        leftovers::sweep()?;
        let (mut entry, before) = self.plan.claim()?;
        if let Some(files) = before.and_then(|facts| facts.files) {
            leftovers::clean(&files, Some(&self.plan.directory), Busy::Detach)?;
        }
        if device::is_lost_at(&self.plan.directory) {
            leftovers::unmount(&self.plan.directory, Busy::Detach)?;
        }
        // Now that what was left is gone.
        self.plan.check_machine()?;
        let made = MadeDirectories::new(&self.plan.directory, OpenTo::All)?;
        let files = registry::folder()?.join(&self.plan.name);
        let mut facts = Facts::new(Kind::Mount, &self.plan.connect.url, "", &[]);
        facts.nqn = self.plan.connect.url.subsystem_nqn().to_owned();
        facts.volume.clone_from(&self.args.volume);
        facts.directory = Some(self.plan.directory.clone());
        facts.files = Some(files.clone());
        facts.read_only = self.plan.read_only;
        entry.write(&facts)?;
        DirBuilder::new().mode(0o700).create(&files).with_context(|| format!("make {}", files.visible()))?;
        let mut noted = Noted { entry, facts };
        let served = self.serve(&files, &mut noted);
        let ended =
            Ended { failed_commands: failures::count(), abandoned: self.abandoned.load(Ordering::Acquire) };
        let lost = ended.lost();
        if let Some(lost) = &lost {
            tracing::error!("{}: {lost}", self.plan.directory.visible());
            // Who waits for the end reads it.
            let Noted { entry, facts } = &mut noted;
            (facts.failed_commands, facts.abandoned) = (ended.failed_commands, ended.abandoned);
            entry.write(facts)?;
        }
        // In order, there is nothing left of it. The entry goes last: whoever waits for it finds nothing.
        let cleaned = leftovers::clean(&files, Some(&self.plan.directory), Busy::Detach);
        drop(made);
        let kept = served.and(cleaned);
        if kept.is_ok() && lost.is_none() {
            report::forget_log(&self.plan.name);
        }
        kept
    }

    /// Attaches, also after some attempts where that is wanted, and serves.
    fn serve(&self, files: &Path, noted: &mut Noted) -> Result<()> {
        let until = Instant::now() + self.args.retry.0;
        let mut fuse =
            FuseArgs::at(self.plan.connect.clone(), files.to_owned(), self.plan.read_only, THREADS);
        fuse.set_cores(self.args.cores);
        loop {
            self.report.doing(&format!("attaching {}", self.plan.connect.url.peer()));
            let mut is_mounted = false;
            let served = fuse::serve_until(&fuse, &self.inner, |controller, _| {
                let kept = self.mounted(controller, files, noted);
                is_mounted = kept.is_ok();
                kept
            });
            match served {
                Err(error) if !is_mounted && self.inner.is_interrupted() => {
                    return Err(error.context(Cancelled));
                }
                Err(error) if !is_mounted && error.is::<Advised>() && Instant::now() < until => {
                    tracing::warn!("{error:#}; trying again");
                    ready::extend(EXTEND);
                    self.wait(RETRY);
                }
                served if self.given_up.load(Ordering::Acquire) => return served.and(Err(anyhow!(GIVEN_UP))),
                served => return served,
            }
        }
    }

    fn wait(&self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until && !self.inner.is_interrupted() {
            std::thread::sleep(POLL);
        }
    }

    /// The files are there: mounts what is in one of them, and watches over it. What is returned is dropped when the
    /// files go.
    fn mounted(&self, controller: &Controller, files: &Path, noted: &mut Noted) -> Result<Ready> {
        let Noted { entry, facts } = noted;
        let namespace = only_namespace(&controller.namespaces())?;
        let read_only = self.plan.read_only || namespace.read_only;
        facts.namespaces = registry::disks(std::slice::from_ref(&namespace));
        facts.nqn = controller.info().subsystem;
        facts.read_only = read_only;
        entry.write(facts)?;
        refuse_second(facts, &self.plan.name)?;
        let file = disk_file(files, namespace.nsid);
        let done = self.step(&namespace, &file, read_only).inspect_err(|_| self.undo(files))?;
        // mkfs goes another way where the controller refuses something, and has checked its own writes.
        failures::forget();
        facts.device = Some(done.device.clone());
        facts.fstype = Some(done.fstype.clone());
        facts.mount_id = Mount::at(&self.plan.directory).map(|mount| mount.id);
        let kept = self.keep_mounted(controller, namespace, &file, entry, facts);
        kept.inspect_err(|_| self.undo(files))
    }

    /// Says that it is mounted, and begins to watch over it.
    fn keep_mounted(
        &self,
        controller: &Controller,
        namespace: Namespace,
        file: &Path,
        entry: &mut Entry,
        facts: &Facts,
    ) -> Result<Ready> {
        entry.write(facts)?;
        entry.tell(controller.clone(), Some(namespace.clone()))?;
        if self.inner.is_interrupted() {
            return Err(Cancelled.into());
        }
        let device = facts.device.clone().unwrap_or_default();
        let (sender, started) = channel();
        self.watched.store(true, Ordering::Release);
        let watch = Watch {
            directory: self.plan.directory.clone(),
            namespace,
            file: file.to_owned(),
            device: device.clone(),
            controller: controller.clone(),
            inner: self.inner.clone(),
            doorbell: self.doorbell.clone(),
            watched: self.watched.clone(),
            // A service manager mounts anew. Without one, programs get errors until somebody unmounts it.
            given_up: self.args.foreground.then(|| self.given_up.clone()),
            abandoned: self.abandoned.clone(),
        };
        start_watch(watch, sender)?;
        started.recv().context("the watch has ended")??;
        let text = said(&self.plan, facts);
        let ready = Ready::announce(None, &text)?;
        protect();
        if !self.report.mounted(&text, facts) {
            // Whoever asked for it is gone, and does not know of it.
            self.doorbell.ring(Signal::SIGTERM);
        }
        tracing::info!("{text}");
        Ok(ready)
    }

    /// Runs the step that has a process of its own.
    fn step(&self, namespace: &Namespace, file: &Path, read_only: bool) -> Result<Done> {
        let doing = match &self.args.mkfs {
            Some(kind) => format!("making {kind}"),
            None if self.args.fsck => "checking and mounting the file system".to_owned(),
            None => "mounting the file system".to_owned(),
        };
        self.report.doing(&doing);
        let mut running =
            Running::start_command(self.step_command(namespace, file, read_only)?, Bond::Lifeline)?;
        let mut extend = Duration::ZERO;
        loop {
            if let Some(ended) = running.poll()? {
                if !ended.stderr.is_empty() {
                    tracing::warn!("{}", ended.stderr);
                }
                return match serde_json::from_str(&ended.stdout) {
                    Ok(Outcome::Done(done)) => Ok(done),
                    Ok(Outcome::Failed { error }) => bail!("{error}"),
                    Err(_) => bail!("{doing}: the process has ended: {}", ended.status),
                };
            }
            if self.inner.is_interrupted() {
                running.kill();
                return Err(Cancelled.into());
            }
            if running.age() >= extend {
                ready::extend(2 * EXTEND);
                extend = running.age() + EXTEND;
            }
            std::thread::sleep(POLL);
        }
    }

    fn step_command(&self, namespace: &Namespace, file: &Path, read_only: bool) -> Result<Command> {
        let block_bytes = namespace.block_bytes.min(BLOCK_BYTES_MAX);
        ensure!(
            block_bytes >= 512 && block_bytes.is_power_of_two(),
            "namespace {} has blocks of {} bytes, and no disk of the kernel has",
            namespace.nsid,
            namespace.block_bytes
        );
        let name = format!(
            "namespace {} of {} ({})",
            namespace.nsid,
            self.plan.connect.url.subsystem_nqn(),
            Bytes(namespace.bytes())
        );
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        command
            .arg0("ringfab")
            .arg("mount-step")
            .arg("--file")
            .arg(file)
            .arg("--directory")
            .arg(&self.plan.directory);
        command.args(["--block-bytes", &block_bytes.to_string(), "--name", &name]);
        for (option, value) in [("--fstype", &self.args.fstype), ("--mkfs", &self.args.mkfs)] {
            command.args(value.iter().map(|value| format!("{option}={value}")));
        }
        for (option, wanted) in
            [("--read-only", read_only), ("--force", self.args.force), ("--fsck", self.args.fsck)]
        {
            command.args(wanted.then_some(option));
        }
        if !self.plan.options.is_empty() {
            command.arg(format!("--options={}", self.plan.options));
        }
        Ok(command)
    }

    /// Takes away what the step has left: its process may have been killed anywhere.
    fn undo(&self, files: &Path) {
        for device in device::below(files) {
            for directory in device::mounts(&device).iter().rev() {
                let unmounted = child::unmount(&[&directory.to_string_lossy()], |age| age < UNDO);
                tracing::debug!(?unmounted, "undone");
            }
        }
    }
}

fn start_watch(watch: Watch, sender: Sender<Result<()>>) -> Result<()> {
    let run = move || watch.run(&sender);
    std::thread::Builder::new().name("watch".to_owned()).spawn(run).map(drop).context("start a thread")
}

/// A disk that is written by two file systems at once is lost.
fn refuse_second(ours: &Facts, name: &str) -> Result<()> {
    let destroys = |other: &Found| other.name() != name && !(other.facts.read_only && ours.read_only);
    for disk in &ours.namespaces {
        match registry::mounts_of(&ours.nqn, disk.nsid, destroys)?.first() {
            Some((other, Standing::Mounted(_))) => {
                let at = other.facts.directory.clone().unwrap_or_default();
                bail!("this namespace is mounted on {} already; two mounts would destroy it", at.visible());
            }
            Some((other, standing)) => bail!(
                "this namespace may be written to still, and two mounts would destroy it: {}",
                standing.in_words(&other.facts)
            ),
            None => {}
        }
    }
    Ok(())
}

/// What a mount is, in one sentence.
fn said(plan: &Plan, facts: &Facts) -> String {
    let (directory, device) = (plan.directory.visible(), facts.device.as_deref().unwrap_or(Path::new("")));
    let disk = facts.namespaces.first();
    let size = disk.map(|disk| Bytes(disk.bytes).to_string()).unwrap_or_default();
    let fstype = facts.fstype.as_deref().unwrap_or("a file system");
    let access = if facts.read_only { ", read only" } else { "" };
    let address = shell_word(&facts.address);
    format!("{address} is mounted on {directory} ({fstype}, {size}, {}{access})", device.visible())
}

/// The system shall not choose this process when memory is short: a disk would be gone, and little memory won.
fn protect() {
    if let Err(error) = fs::write("/proc/self/oom_score_adj", "-900") {
        tracing::debug!(%error, "not protected from the lack of memory");
    }
}

/// The entry of a directory, for those who only want to know whether it is free.
pub(super) fn is_taken(name: &str) -> Result<bool> {
    Ok(matches!(Entry::claim(name)?, Claim::Taken(_)))
}

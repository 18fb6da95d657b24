//! `ringfab path`: the paths of what this machine has attached, shown, added and removed.
//!
//! The process that has it attached does that, when it is asked over the socket of its entry.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use ringfab_base::{shell_word, visible};
use ringfab_initiator::Url;
use ringfab_process::table::Column;
use serde_json::{Value, json};

use crate::context::Context;
use crate::meant::{self, place};
use crate::output;
use crate::quantity::{Bytes, Span};
use crate::registry::{Answer, Asked, Facts, Found, PathReport};

/// How times are written, behind the examples of a command.
macro_rules! examples {
    ($($line:literal),+) => {
        concat!(
            "Examples:",
            $("\n  ", $line),+,
            "\n\nTIME is a number of seconds, or has a unit: 50us, 500ms, 10s, 2m, 1h."
        )
    };
}

/// Paths of what is attached.
#[derive(Subcommand, Debug)]
pub enum PathCommand {
    /// Show the paths of what this machine has attached
    #[command(after_help = examples!("ringfab path list", "ringfab path list /mnt/a --interval 2s"))]
    List(PathListArgs),
    /// Attach what is attached by one more address, while it is in use
    #[command(after_help = examples!("ringfab path add /mnt/a nvme+tcp://192.0.2.6"))]
    Add(Box<PathAddArgs>),
    /// Leave a path; commands that it has been sent end first
    #[command(after_help = examples!("ringfab path remove /mnt/a 2"))]
    Remove(PathRemoveArgs),
}

/// The options of `ringfab path list`.
#[derive(Args, Debug)]
pub struct PathListArgs {
    /// What `ringfab list` shows: a directory, a device, the name of a volume, an NBD URI, the number of a process, or
    /// the address or NQN that it is attached by. Without it, all
    pub target: Option<String>,
    /// Look twice, this long apart, and show how much goes by each path
    #[arg(long, value_name = "TIME")]
    pub interval: Option<Span>,
}

/// The options of `ringfab path add`.
#[derive(Args, Debug)]
pub struct PathAddArgs {
    /// What `ringfab list` shows, as of `path list`
    pub target: String,
    /// Another address of its subsystem; it may leave out the NQN
    pub address: Url,
    /// How long to wait until it takes I/O. Attaching it goes on afterwards
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub timeout: Span,
}

/// The options of `ringfab path remove`.
#[derive(Args, Debug)]
pub struct PathRemoveArgs {
    /// What `ringfab list` shows, as of `path list`
    pub target: String,
    /// The number of the path, or its address, as `path list` shows them
    pub path: String,
    /// How long to wait until it is gone. Leaving it goes on afterwards
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub timeout: Span,
}

const POLL: Duration = Duration::from_millis(5);

/// Runs the command.
///
/// # Errors
/// What is not attached, or does not do what is asked.
pub fn run(command: &PathCommand, context: &Context) -> Result<()> {
    match command {
        PathCommand::List(args) => list(args, context),
        PathCommand::Add(args) => add(args, context),
        PathCommand::Remove(args) => remove(args, context),
    }
}

fn list(args: &PathListArgs, context: &Context) -> Result<()> {
    let found = meant::find(args.target.as_deref(), true, "ask")?;
    let before: Vec<_> = found.iter().map(paths).collect();
    let looked = Instant::now();
    let Some(Span(interval)) = args.interval else {
        let shown = found.iter().map(|one| &one.facts).zip(before);
        return show(&shown.map(|(facts, paths)| Shown::of(facts, paths, None)).collect::<Vec<_>>(), context);
    };
    while looked.elapsed() < interval {
        context.interrupt.check()?;
        std::thread::sleep(interval.saturating_sub(looked.elapsed()).min(Duration::from_millis(100)));
    }
    let passed = looked.elapsed();
    let after = found.iter().map(|one| (&one.facts, paths(one))).zip(before);
    let shown = after.map(|((facts, after), before)| {
        let rates = rates(&before, &after, passed);
        Shown::of(facts, after, Some(rates))
    });
    show(&shown.collect::<Vec<_>>(), context)
}

/// The paths of something, as its process tells them.
fn paths(found: &Found) -> Vec<PathReport> {
    found.status().map(|status| status.paths).unwrap_or_default()
}

/// What goes by a path in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    pub(crate) commands: f64,
    pub(crate) bytes: f64,
}

/// Of each path afterwards; none of one that has come meanwhile.
fn rates(before: &[PathReport], after: &[PathReport], passed: Duration) -> Vec<Option<Rate>> {
    let seconds = passed.as_secs_f64().max(f64::MIN_POSITIVE);
    let rate = |now: &PathReport| {
        let then = before.iter().find(|then| then.path == now.path)?;
        let per_second = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        Some(Rate {
            commands: per_second(now.commands, then.commands),
            bytes: per_second(now.bytes, then.bytes),
        })
    };
    after.iter().map(rate).collect()
}

/// The paths of something attached.
struct Shown {
    facts: Facts,
    paths: Vec<PathReport>,
    rates: Option<Vec<Option<Rate>>>,
}

impl Shown {
    fn of(facts: &Facts, paths: Vec<PathReport>, rates: Option<Vec<Option<Rate>>>) -> Self {
        Self { facts: facts.clone(), paths, rates }
    }

    fn rate(&self, index: usize) -> Option<Rate> {
        self.rates.as_ref()?.get(index).copied().flatten()
    }

    fn json(&self) -> impl Iterator<Item = Value> {
        self.paths.iter().enumerate().map(|(index, path)| {
            let rate = self.rate(index);
            json!({
                "where": place(&self.facts),
                "pid": self.facts.pid,
                "nqn": self.facts.nqn,
                "path": path.path,
                "address": path.address,
                "connected_to": path.connected_to,
                "cntlid": path.cntlid,
                "state": path.state,
                "groups": path.groups,
                "commands": path.commands,
                "bytes": path.bytes,
                "outstanding": path.outstanding,
                "losses": path.losses,
                "last_loss_s": path.last_loss_s,
                "last_loss": path.last_loss,
                "last_failover_us": path.last_failover_us,
                "commands_per_s": rate.map(|rate| rate.commands),
                "bytes_per_s": rate.map(|rate| rate.bytes),
            })
        })
    }

    fn rows(&self) -> impl Iterator<Item = Vec<String>> {
        self.paths.iter().enumerate().map(|(index, path)| {
            let mut row = vec![
                shell_word(place(&self.facts)),
                path.path.clone(),
                path.state.clone(),
                path.access(),
                path.outstanding.to_string(),
                path.losses.to_string(),
                path.last_failover_us
                    .map_or_else(|| "-".to_owned(), |us| format!("{:.1} ms", us as f64 / 1e3)),
                shell_word(&path.address),
            ];
            if self.rates.is_some() {
                let rate = self.rate(index);
                row.push(rate.map_or_else(|| "-".to_owned(), |rate| format!("{:.0}", rate.commands)));
                let bytes = |rate: Rate| format!("{}/s", Bytes(rate.bytes as u64));
                row.push(rate.map_or_else(|| "-".to_owned(), bytes));
            }
            row
        })
    }
}

fn show(all: &[Shown], context: &Context) -> Result<()> {
    output::either(
        context.json,
        || json!({ "paths": all.iter().flat_map(Shown::json).collect::<Vec<_>>() }),
        || {
            let mut columns = vec![
                Column::text("WHERE"),
                Column::text("PATH"),
                Column::text("STATE"),
                Column::text("ACCESS").spare(1),
                Column::text("OUTSTANDING").spare(3),
                Column::text("LOSSES").spare(4),
                Column::text("FAILOVER").spare(2),
                Column::name("ADDRESS"),
            ];
            if all.iter().any(|one| one.rates.is_some()) {
                columns.extend([Column::text("IOPS"), Column::text("RATE")]);
            }
            let rows: Vec<_> = all.iter().flat_map(Shown::rows).collect();
            output::table(&columns, &rows)
        },
    )
}

fn add(args: &PathAddArgs, context: &Context) -> Result<()> {
    let found = one(&args.target)?;
    let answer = begun(&found, &Asked::AddPath(args.address.to_string()))?;
    let number = answer.path.unwrap_or_default();
    wait(&found, args.timeout.0, context, |paths| match paths.iter().find(|one| one.path == number) {
        Some(path) if path.is_ready() => Ok(true),
        // What cannot be reached yet is tried again.
        Some(_) => Ok(false),
        None => bail!(
            "{} was given up as a path; the log of process {} says why",
            shell_word(&args.address),
            found.facts.pid
        ),
    })?;
    told(&found, "added", &number, &args.address.to_string(), context)
}

fn remove(args: &PathRemoveArgs, context: &Context) -> Result<()> {
    let found = one(&args.target)?;
    let (number, address) = named(&found, &args.path)?;
    begun(&found, &Asked::RemovePath(number.clone()))?;
    wait(&found, args.timeout.0, context, |paths| Ok(paths.iter().all(|one| one.path != number)))?;
    told(&found, "removed", &number, &address, context)
}

/// What a user means, of which there must be one.
fn one(target: &str) -> Result<Found> {
    let mut found = meant::find(Some(target), false, "ask")?;
    match found.pop() {
        Some(found) => Ok(found),
        None => bail!("{} is not attached", visible(target)),
    }
}

/// The number and the address of a path that a user names by one of them.
fn named(found: &Found, path: &str) -> Result<(String, String)> {
    let there = paths(found);
    let url = path.parse::<Url>().ok();
    let is_meant = |one: &&PathReport| match &url {
        Some(url) => one.address.parse::<Url>().is_ok_and(|ours| meant::is_at(&ours, url)),
        None => one.path == path || one.connected_to.as_deref() == Some(path),
    };
    match there.iter().find(is_meant) {
        Some(one) => Ok((one.path.clone(), one.address.clone())),
        None => bail!(
            "{} is no path of {}; `ringfab path list` shows them",
            visible(path),
            visible(place(&found.facts))
        ),
    }
}

/// Has the process begin with it.
fn begun(found: &Found, asked: &Asked) -> Result<Answer> {
    let answer = found.have(asked)?;
    match answer.refused {
        Some(refused) => bail!("{}: {refused}", visible(place(&found.facts))),
        None => Ok(answer),
    }
}

/// Waits until its paths are as they should be.
fn wait(
    found: &Found,
    limit: Duration,
    context: &Context,
    is_done: impl Fn(&[PathReport]) -> Result<bool>,
) -> Result<()> {
    let begun = Instant::now();
    loop {
        context.interrupt.check()?;
        match found.status() {
            Some(status) if is_done(&status.paths)? => return Ok(()),
            None if found.wait_for_end(POLL) => bail!("process {} has ended meanwhile", found.facts.pid),
            _ => {}
        }
        if begun.elapsed() >= limit {
            bail!(
                "not done after {} s; it goes on, and `ringfab path list` shows how it is",
                limit.as_secs_f64()
            );
        }
        std::thread::sleep(POLL);
    }
}

fn told(found: &Found, what: &str, number: &str, address: &str, context: &Context) -> Result<()> {
    let facts = &found.facts;
    output::either(
        context.json,
        || json!({ what: { "where": place(facts), "pid": facts.pid, "path": number, "address": address } }),
        || format!("{}: path {number} by {} was {what}", shell_word(place(facts)), shell_word(address)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(path: &str, commands: u64, bytes: u64) -> PathReport {
        PathReport {
            path: path.to_owned(),
            address: "nvme+tcp://192.0.2.1/nqn.2026-11.com.example:a".to_owned(),
            connected_to: None,
            cntlid: Some(1),
            state: "ready".to_owned(),
            groups: Vec::new(),
            commands,
            bytes,
            outstanding: 0,
            losses: 0,
            last_loss_s: None,
            last_loss: None,
            last_failover_us: None,
        }
    }

    #[test]
    fn a_rate_is_what_has_gone_by_a_path_meanwhile() {
        let before = [report("1", 100, 4096), report("2", 7, 7)];
        let after = [report("1", 300, 12288), report("2.1", 50, 50)];
        let expected = Rate { commands: 100.0, bytes: 4096.0 };
        assert_eq!(rates(&before, &after, Duration::from_secs(2)), [Some(expected), None]);
    }
}

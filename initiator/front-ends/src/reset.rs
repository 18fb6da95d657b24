//! `ringfab reset`: has a controller that this machine has attached be connected again.
//!
//! The process that has it does that, when it is asked over the socket of its entry. A host resets its own controllers
//! only, so an address that nothing here is attached by is refused.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::{ArgGroup, Args};
use ringfab_base::{shell_word, visible};
use ringfab_process::log;
use serde_json::{Value, json};

use crate::context::Context;
use crate::meant::{self, place};
use crate::output;
use crate::quantity::Span;
use crate::registry::{Asked, Facts, Found, Status};

/// The options of `ringfab reset`.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("what").required(true).multiple(true).args(["target", "all"])))]
pub struct ResetArgs {
    /// What `ringfab list` shows: a directory, a device, the name of a volume, an NBD URI, the number of a process, or
    /// the address or NQN that it is attached by
    pub target: Option<String>,
    /// Reset every controller that matches TARGET; without TARGET, all that are attached
    #[arg(long)]
    pub all: bool,
    /// How long to wait until it is connected again. The reset goes on afterwards
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub timeout: Span,
}

const POLL: Duration = Duration::from_millis(2);
/// A wait that takes longer is explained.
const SAY: Duration = Duration::from_secs(2);

/// What came of a reset.
struct Outcome {
    facts: Facts,
    time: Duration,
    /// How it is now, or why it was not connected again.
    result: Result<Status>,
}

/// Runs the command.
///
/// # Errors
/// What is not attached, or not connected again.
pub fn run(args: &ResetArgs, context: &Context) -> Result<()> {
    let found = meant::find(args.target.as_deref(), args.all, "reset")?;
    let mut outcomes = Vec::new();
    for one in found {
        let begun = Instant::now();
        let result = reset(&one, args.timeout.0, context);
        context.interrupt.check()?;
        outcomes.push(Outcome { facts: one.facts, time: begun.elapsed(), result });
    }
    let failed = outcomes.iter().find_map(|outcome| {
        let error = outcome.result.as_ref().err()?;
        Some(format!("{}: {error:#}", visible(place(&outcome.facts))))
    });
    output::either(
        context.json,
        || json!({ "reset": outcomes.iter().map(Outcome::json).collect::<Vec<_>>() }),
        || outcomes.iter().filter_map(Outcome::line).collect::<Vec<_>>().join("\n"),
    )?;
    match failed {
        Some(failed) => bail!("{failed}"),
        None => Ok(()),
    }
}

impl Outcome {
    fn json(&self) -> Value {
        let facts = &self.facts;
        let status = self.result.as_ref().ok();
        json!({
            "kind": facts.kind,
            "pid": facts.pid,
            "where": place(facts),
            "address": facts.address,
            "nqn": facts.nqn,
            "time_us": u64::try_from(self.time.as_micros()).unwrap_or(u64::MAX),
            "reconnects": status.map(|status| status.reconnects),
            "error": self.result.as_ref().err().map(|error| format!("{error:#}")),
        })
    }

    fn line(&self) -> Option<String> {
        self.result.as_ref().ok()?;
        let (ms, shown) = (self.time.as_secs_f64() * 1000.0, shell_word(place(&self.facts)));
        Some(format!("{shown}: the controller was reset and is connected again, {ms:.1} ms"))
    }
}

/// Resets one, and waits until it is connected again.
fn reset(found: &Found, limit: Duration, context: &Context) -> Result<Status> {
    let answer = found.have(&Asked::Reset)?;
    let given_up = || format!("the controller was given up: {}", found.facts.remedy());
    if answer.before.is_given_up() {
        bail!("{}", given_up());
    }
    if let Some(refused) = answer.refused {
        bail!("{refused}");
    }
    let (begun, mut said) = (Instant::now(), false);
    loop {
        context.interrupt.check()?;
        let status = found.status();
        match &status {
            Some(status) if status.is_connected() && status.reconnects > answer.before.reconnects => {
                return Ok(status.clone());
            }
            Some(status) if status.is_given_up() => bail!("{}", given_up()),
            None if found.wait_for_end(POLL) => {
                bail!("process {} has ended meanwhile", found.facts.pid)
            }
            _ => {}
        }
        if begun.elapsed() >= limit {
            bail!(
                "not connected again after {} s; that goes on, and `ringfab list` shows how it is",
                limit.as_secs_f64()
            );
        }
        if !said && begun.elapsed() >= SAY {
            said = true;
            let place = place(&found.facts);
            log::say(&format!(
                "ringfab: {place}: the target is away; reconnecting goes on, and ctrl-C ends the wait only ..."
            ));
        }
        std::thread::sleep(POLL);
    }
}

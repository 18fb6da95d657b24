//! The target with as many reactor threads as one likes, also with more than there are processors: its own program
//! takes each processor only once, since nobody is faster for it.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use ringfab_target::Config;
use ringfab_target::service::{ServeOptions, serve};

#[derive(Args)]
pub(crate) struct ServeArgs {
    /// The configuration, of which the processors do not count
    #[arg(long)]
    config: PathBuf,
    /// Gets the addresses, once hosts can connect
    #[arg(long)]
    ready_file: PathBuf,
    /// Reactor threads
    #[arg(long)]
    threads: usize,
}

/// Serves until it is told to stop.
pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    let options = ServeOptions {
        config: args.config.clone(),
        ready_file: Some(args.ready_file.clone()),
        log_format: None,
    };
    serve(&options, |target, config| {
        let mut config: Config = config.clone();
        config.target.cores = spread(&config.target.cores, args.threads);
        ringfab_target::core::start(target, &config)
    })?;
    Ok(())
}

/// Threads in turn on each of the processors.
fn spread(processors: &[usize], threads: usize) -> Vec<usize> {
    processors.iter().copied().cycle().take(threads).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_turns_on_the_processors() {
        assert_eq!(spread(&[0, 1, 2], 2), [0, 1]);
        assert_eq!(spread(&[0, 1], 4), [0, 1, 0, 1]);
    }
}

//! `ringfab complete`: what shells ask for while somebody types a command. A name a line, and never a complaint.

use std::path::Path;

use anyhow::Result;
use clap::{Args, ValueEnum};
use ringfab_base::visible;
use ringfab_front_ends::output;
use ringfab_front_ends::volumes::file::Volumes;
use ringfab_front_ends::volumes::{attached, mounted};
use ringfab_process::completions::Words;

/// Which argument has which names.
pub(crate) const WORDS: [Words; 3] = [
    Words { command: "mount", argument: "source", list: "volumes" },
    Words { command: "umount", argument: "target", list: "mounted" },
    Words { command: "reset", argument: "target", list: "attached" },
];

/// The options of `ringfab complete`.
#[derive(Args)]
pub(crate) struct CompleteArgs {
    /// Which names
    list: List,
}

#[derive(Clone, Copy, ValueEnum)]
enum List {
    /// Of volumes.toml.
    Volumes,
    /// Of what is mounted.
    Mounted,
    /// Of what is attached.
    Attached,
}

/// Prints the names. What cannot be known has none: whoever types sees no message.
pub(crate) fn run(args: &CompleteArgs) -> Result<()> {
    let names = match args.list {
        List::Volumes => Volumes::load_default()
            .map(|volumes| volumes.all().iter().map(|volume| volume.name().to_owned()).collect()),
        List::Mounted => mounted(),
        List::Attached => attached(),
    };
    let mut names: Vec<String> = names.unwrap_or_default();
    names.sort();
    names.dedup();
    // A name that is shown with escapes is not the name.
    names.retain(|name| visible(name).to_string() == *name && !Path::new(name).as_os_str().is_empty());
    if names.is_empty() { Ok(()) } else { output::text(&names.join("\n")) }
}

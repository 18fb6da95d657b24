//! `ringfab read` and `ringfab write`: bytes between a namespace and a file or pipe.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::Args;
use ringfab_base::VisiblePath as _;
use ringfab_initiator::Namespace;
use ringfab_initiator::blocking::Disk;
use ringfab_process::log;
use ringfab_process::terminal::{self, Stream};
use serde_json::{Value, json};

use ringfab_front_ends::context::{Context, Usage};
use ringfab_front_ends::namespaces::only_namespace;
use ringfab_front_ends::options::ConnectArgs;
use ringfab_front_ends::output::{self, ReaderGone};
use ringfab_front_ends::overwriting::confirm_overwriting;
use ringfab_front_ends::progress::{self, Progress};
use ringfab_front_ends::quantity::Bytes;

use super::with_controller;

#[derive(Args)]
pub(crate) struct ReadArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// First byte to read
    #[arg(long, value_name = "SIZE", default_value = "0")]
    offset: Bytes,
    /// Bytes to read; by default everything up to the end
    #[arg(long, value_name = "SIZE")]
    length: Option<Bytes>,
    /// The file to write to; by default the standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct WriteArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// First byte to write
    #[arg(long, value_name = "SIZE", default_value = "0")]
    offset: Bytes,
    /// Bytes to write; by default all of the input
    #[arg(long, value_name = "SIZE")]
    length: Option<Bytes>,
    /// The file to read from; by default the standard input
    #[arg(long, short, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Confirm that this namespace is overwritten
    #[arg(long, value_name = "NSID")]
    destroy_data: Option<u32>,
}

/// Bytes moved at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Copies bytes of a namespace to a file or the standard output.
pub(crate) fn read(args: &ReadArgs, context: &Context) -> Result<()> {
    if args.output.is_none() && io::stdout().is_terminal() {
        return Err(
            Usage("a disk's bytes do not go to a terminal; name a file with --output".to_owned()).into()
        );
    }
    if args.output.is_none() && context.json {
        return Err(Usage("--json needs --output, since both go to the standard output".to_owned()).into());
    }
    let options = args.connect.connect_options()?;
    let (copied, time) = with_controller(&args.connect, context, |controller| {
        let namespace = only_namespace(&controller.namespaces())?;
        let offset = args.offset.0;
        let rest = namespace.bytes().checked_sub(offset);
        let rest = rest.with_context(|| beyond_the_end(&namespace, offset))?;
        let length = args.length.map_or(rest, |length| length.0);
        ensure!(length <= rest, beyond_the_end(&namespace, offset.saturating_add(length)));
        let mut target = open_output(args.output.as_ref())?;
        let progress = Progress::start("read", Some(length), &options, controller);
        let disk = controller.disk_of(&namespace);
        let copy = Copy { disk: &disk, offset, progress: &progress, context };
        copy.read_out(length, &mut *target)?;
        target.flush().map_err(output_error)?;
        Ok((length, progress.finish()))
    })?;
    let said = format!("{} read {}", Bytes(copied), progress::summary(copied, time));
    match args.output {
        Some(_) => output::either(context.json, || document(copied, time), || said),
        // The output is for the bytes.
        None if terminal::is_terminal(Stream::Err) => {
            log::say(&said);
            Ok(())
        }
        None => Ok(()),
    }
}

/// Copies a file or the standard input to a namespace, and flushes it.
pub(crate) fn write(args: &WriteArgs, context: &Context) -> Result<()> {
    let options = args.connect.connect_options()?;
    let (copied, time) = with_controller(&args.connect, context, |controller| {
        let namespace = only_namespace(&controller.namespaces())?;
        confirm_overwriting(controller, &namespace, args.destroy_data)?;
        let (mut source, known) = open_input(args.input.as_ref())?;
        let length = args.length.map(|length| length.0);
        let most = namespace.bytes().saturating_sub(args.offset.0);
        if let Some(length) = length.or(known) {
            ensure!(length <= most, beyond_the_end(&namespace, args.offset.0.saturating_add(length)));
        }
        let progress = Progress::start("written", length.or(known), &options, controller);
        let disk = controller.disk_of(&namespace);
        let copy = Copy { disk: &disk, offset: args.offset.0, progress: &progress, context };
        let copied = copy.write_in(length, &mut *source)?;
        progress.ask();
        disk.flush().context("flush")?;
        Ok((copied, progress.finish()))
    })?;
    output::either(
        context.json,
        || document(copied, time),
        || format!("{} written and flushed {}", Bytes(copied), progress::summary(copied, time)),
    )
}

/// The end of a copy, for programs.
fn document(bytes: u64, time: Duration) -> Value {
    json!({ "bytes": bytes, "elapsed_s": time.as_secs_f64() })
}

/// A copy from or to a disk, from a byte of it on.
struct Copy<'a> {
    disk: &'a Disk,
    offset: u64,
    progress: &'a Progress,
    context: &'a Context,
}

impl Copy<'_> {
    /// Copies so many bytes out of the disk.
    fn read_out(&self, length: u64, target: &mut dyn Write) -> Result<()> {
        let mut piece = vec![0; PIECE_BYTES];
        let mut done = 0;
        while done < length {
            self.context.interrupt.check()?;
            let bytes = piece_bytes(length - done);
            let at = self.offset + done;
            self.progress.ask();
            let result = self.disk.read_at(at, &mut piece[..bytes]);
            result.with_context(|| format!("read {bytes} bytes at {at}"))?;
            done += bytes as u64;
            self.progress.set(done);
            target.write_all(&piece[..bytes]).map_err(output_error)?;
        }
        Ok(())
    }

    /// Copies to the disk, so many bytes or all that come; how many these were.
    fn write_in(&self, length: Option<u64>, source: &mut dyn Read) -> Result<u64> {
        let mut piece = vec![0; PIECE_BYTES];
        let mut done = 0;
        loop {
            self.context.interrupt.check()?;
            let wanted = length.map_or(PIECE_BYTES, |length| piece_bytes(length - done));
            let bytes = fill(source, &mut piece[..wanted]).context("read the input")?;
            if bytes == 0 {
                break;
            }
            let at = self.offset + done;
            ensure!(at + bytes as u64 <= self.disk.size()?, "the input is longer than the namespace");
            self.progress.ask();
            let result = self.disk.write_at(at, &piece[..bytes], false);
            result.with_context(|| format!("write {bytes} bytes at {at}"))?;
            done += bytes as u64;
            self.progress.set(done);
        }
        if let Some(length) = length.filter(|length| done < *length) {
            bail!("the input ended after {done} of {length} bytes, which were written");
        }
        Ok(done)
    }
}

/// Reads until the slice is full or the input ends.
fn fill(source: &mut dyn Read, target: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < target.len() {
        match source.read(&mut target[filled..]) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn piece_bytes(rest: u64) -> usize {
    rest.min(PIECE_BYTES as u64) as usize
}

fn beyond_the_end(namespace: &Namespace, end: u64) -> String {
    format!("byte {end} lies beyond the end of namespace {} ({} bytes)", namespace.nsid, namespace.bytes())
}

fn open_output(path: Option<&PathBuf>) -> Result<Box<dyn Write>> {
    Ok(match path {
        Some(path) => Box::new(File::create(path).with_context(|| format!("create {}", path.visible()))?),
        None => Box::new(io::stdout().lock()),
    })
}

/// Why the output takes no more.
fn output_error(error: io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe => ReaderGone.into(),
        _ => anyhow!(error).context("write the output"),
    }
}

/// The input, and how long it is when that is known.
fn open_input(path: Option<&PathBuf>) -> Result<(Box<dyn Read>, Option<u64>)> {
    let Some(path) = path else { return Ok((Box::new(io::stdin().lock()), None)) };
    let file = File::open(path).with_context(|| format!("open {}", path.visible()))?;
    let metadata = file.metadata().with_context(|| format!("look at {}", path.visible()))?;
    Ok((Box::new(file), metadata.is_file().then_some(metadata.len())))
}

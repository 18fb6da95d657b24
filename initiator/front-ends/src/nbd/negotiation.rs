//! The fixed newstyle handshake: bytes in, bytes out.

use ringfab_proto::nbd::{
    BASE_ALLOCATION, IHAVEOPT, NBDMAGIC, OPTION_REPLY_MAGIC, be16, be32, be64, handshake, info, option, reply,
};

use super::export::{Export, REMOVED};

/// Our number of the metadata context `base:allocation`.
pub(crate) const BASE_ALLOCATION_ID: u32 = 1;

/// The longest option that is looked at: a name of 4096 bytes and a list of information. Longer ones are skipped.
pub(crate) const OPTION_BYTES_MAX: usize = 8192;
/// The longest name of an export (the specification's limit on strings).
const NAME_BYTES_MAX: usize = 4096;
/// The longest option that is skipped; whoever sends a longer one is no client.
const SKIP_BYTES_MAX: u32 = 1 << 20;
/// Options of one handshake at most.
const OPTIONS_MAX: u32 = 256;
/// Bytes before the data of an option.
const OPTION_HEAD_BYTES: usize = 16;

/// A handshake under way.
#[derive(Debug)]
pub(crate) struct Negotiation {
    state: State,
    no_zeroes: bool,
    structured: bool,
    /// The export of which the client wants to know what is allocated.
    allocation: Option<usize>,
    options: u32,
}

#[derive(Debug)]
enum State {
    /// The client's flags come next.
    Flags,
    /// An option comes next.
    Option,
    /// Bytes of an option that is too long.
    Skip(u32),
}

/// What comes of the bytes so far.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// More bytes are needed.
    More,
    /// The handshake is done: this export (by index) is used.
    Use {
        export: usize,
        structured: bool,
        /// Whether the client may ask what is allocated.
        allocation: bool,
    },
    /// The connection ends after what was written.
    End,
}

/// The client broke the protocol; the connection ends at once.
pub(crate) type Violation = &'static str;

/// What a server says first.
pub(crate) fn greeting() -> [u8; 18] {
    let mut bytes = [0; 18];
    bytes[..8].copy_from_slice(&NBDMAGIC.to_be_bytes());
    bytes[8..16].copy_from_slice(&IHAVEOPT.to_be_bytes());
    bytes[16..].copy_from_slice(&(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES).to_be_bytes());
    bytes
}

impl Negotiation {
    pub(crate) fn new() -> Self {
        Self { state: State::Flags, no_zeroes: false, structured: false, allocation: None, options: 0 }
    }

    /// Takes bytes from the start of `input` and appends answers to `output`; says how many bytes it took. It has to be
    /// called again with the rest and more, while it says [`Progress::More`].
    pub(crate) fn advance(
        &mut self,
        input: &[u8],
        exports: &[Export],
        output: &mut Vec<u8>,
    ) -> Result<(usize, Progress), Violation> {
        let mut taken = 0;
        loop {
            let rest = &input[taken..];
            match self.state {
                State::Flags if rest.len() >= 4 => {
                    self.take_flags(be32(rest, 0))?;
                    taken += 4;
                }
                State::Skip(left) => {
                    let skipped = rest.len().min(left as usize);
                    taken += skipped;
                    let left = left - skipped as u32;
                    if left > 0 {
                        self.state = State::Skip(left);
                        return Ok((taken, Progress::More));
                    }
                    self.state = State::Option;
                }
                State::Option if rest.len() >= OPTION_HEAD_BYTES => {
                    let Some((bytes, progress)) = self.take_option(rest, exports, output)? else {
                        return Ok((taken, Progress::More));
                    };
                    taken += bytes;
                    if progress != Progress::More {
                        return Ok((taken, progress));
                    }
                }
                State::Flags | State::Option => return Ok((taken, Progress::More)),
            }
        }
    }

    fn take_flags(&mut self, flags: u32) -> Result<(), Violation> {
        let known = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
        if flags & !known != 0 {
            return Err("handshake flags that do not exist");
        }
        self.no_zeroes = flags & u32::from(handshake::NO_ZEROES) != 0;
        self.state = State::Option;
        Ok(())
    }

    /// Takes a whole option; `None` when it is not all there.
    fn take_option(
        &mut self,
        input: &[u8],
        exports: &[Export],
        output: &mut Vec<u8>,
    ) -> Result<Option<(usize, Progress)>, Violation> {
        if be64(input, 0) != IHAVEOPT {
            return Err("an option without its magic");
        }
        let (number, length) = (be32(input, 8), be32(input, 12));
        if length as usize > OPTION_BYTES_MAX - OPTION_HEAD_BYTES {
            self.count_option()?;
            return self.skip(number, length, output).map(Some);
        }
        let end = OPTION_HEAD_BYTES + length as usize;
        let Some(data) = input.get(OPTION_HEAD_BYTES..end) else { return Ok(None) };
        self.count_option()?;
        Ok(Some((end, self.answer(number, data, exports, output)?)))
    }

    fn count_option(&mut self) -> Result<(), Violation> {
        self.options += 1;
        if self.options > OPTIONS_MAX { Err("options without end") } else { Ok(()) }
    }

    fn skip(
        &mut self,
        number: u32,
        length: u32,
        output: &mut Vec<u8>,
    ) -> Result<(usize, Progress), Violation> {
        if number == option::EXPORT_NAME || length > SKIP_BYTES_MAX {
            return Err("an option that is too long");
        }
        say(output, number, reply::ERR_TOO_BIG, b"the option is too long");
        self.state = State::Skip(length);
        Ok((OPTION_HEAD_BYTES, Progress::More))
    }

    fn answer(
        &mut self,
        number: u32,
        data: &[u8],
        exports: &[Export],
        output: &mut Vec<u8>,
    ) -> Result<Progress, Violation> {
        match number {
            option::EXPORT_NAME => return self.export_name(data, exports, output),
            option::ABORT => {
                say(output, number, reply::ACK, b"");
                return Ok(Progress::End);
            }
            option::LIST if data.is_empty() => list(exports, output),
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                say(output, number, reply::ACK, b"");
            }
            option::LIST | option::STRUCTURED_REPLY => {
                say(output, number, reply::ERR_INVALID, b"this option has no data");
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.meta_context(number, data, exports, output);
            }
            option::INFO | option::GO => return Ok(self.info(number, data, exports, output)),
            _ => say(output, number, reply::ERR_UNSUP, b"this option is not supported"),
        }
        Ok(Progress::More)
    }

    /// The oldest way to choose: it has no way to refuse but to hang up.
    fn export_name(
        &self,
        name: &[u8],
        exports: &[Export],
        output: &mut Vec<u8>,
    ) -> Result<Progress, Violation> {
        let export = find(exports, name).map_err(|_| "an export that does not exist")?;
        output.extend_from_slice(&exports[export].bytes().to_be_bytes());
        output.extend_from_slice(&exports[export].flags(self.structured).to_be_bytes());
        if !self.no_zeroes {
            output.extend_from_slice(&[0; 124]);
        }
        Ok(self.used(export))
    }

    fn used(&self, export: usize) -> Progress {
        Progress::Use { export, structured: self.structured, allocation: self.allocation == Some(export) }
    }

    /// Lists or chooses metadata contexts. There is one.
    fn meta_context(&mut self, number: u32, data: &[u8], exports: &[Export], output: &mut Vec<u8>) {
        let chooses = number == option::SET_META_CONTEXT;
        if chooses {
            // Each choice takes the place of the one before, also where it fails.
            self.allocation = None;
        }
        if !self.structured {
            return say(output, number, reply::ERR_INVALID, b"structured replies must be chosen before");
        }
        let Some((name, queries)) = parse_queries(data) else {
            return say(
                output,
                number,
                reply::ERR_INVALID,
                b"the lengths in this option do not fit together",
            );
        };
        let export = match find(exports, name) {
            Ok(export) => export,
            Err(why) => return say(output, number, reply::ERR_UNKNOWN, why.as_bytes()),
        };
        let is_meant = |query: &&[u8]| *query == BASE_ALLOCATION || !chooses && *query == b"base:";
        if queries.iter().any(is_meant) || !chooses && queries.is_empty() {
            let id = if chooses { BASE_ALLOCATION_ID } else { 0 };
            say(output, number, reply::META_CONTEXT, &[&id.to_be_bytes()[..], BASE_ALLOCATION].concat());
            self.allocation = self.allocation.or(chooses.then_some(export));
        }
        say(output, number, reply::ACK, b"");
    }

    fn info(&self, number: u32, data: &[u8], exports: &[Export], output: &mut Vec<u8>) -> Progress {
        let Some((name, wanted)) = parse_info(data) else {
            say(output, number, reply::ERR_INVALID, b"the lengths in this option do not fit together");
            return Progress::More;
        };
        let index = match find(exports, name) {
            Ok(index) => index,
            Err(why) => {
                say(output, number, reply::ERR_UNKNOWN, why.as_bytes());
                return Progress::More;
            }
        };
        let export = &exports[index];
        say_info(
            output,
            number,
            info::EXPORT,
            &[&export.bytes().to_be_bytes(), &export.flags(self.structured).to_be_bytes()],
        );
        let sizes = export.block_sizes().map(u32::to_be_bytes);
        // Sent unasked too: a client that does not ask may still heed it.
        say_info(output, number, info::BLOCK_SIZE, &[&sizes[0], &sizes[1], &sizes[2]]);
        if wanted(info::NAME) {
            say_info(output, number, info::NAME, &[export.name.as_bytes()]);
        }
        if wanted(info::DESCRIPTION) {
            say_info(output, number, info::DESCRIPTION, &[export.description.as_bytes()]);
        }
        say(output, number, reply::ACK, b"");
        match number {
            option::GO => self.used(index),
            _ => Progress::More,
        }
    }
}

/// The name in the data of INFO or GO, and a question for each kind of information; `None` when lengths disagree.
fn parse_info(data: &[u8]) -> Option<(&[u8], impl Fn(u16) -> bool + '_)> {
    let length = be32(data.get(..4)?, 0) as usize;
    let rest = data.get(4..)?;
    if length > NAME_BYTES_MAX || length > rest.len() {
        return None;
    }
    let (name, rest) = rest.split_at(length);
    let count = usize::from(be16(rest.get(..2)?, 0));
    let kinds = &rest[2..];
    if kinds.len() != 2 * count {
        return None;
    }
    Some((name, move |kind: u16| kinds.chunks_exact(2).any(|bytes| be16(bytes, 0) == kind)))
}

/// The name and the queries in the data of an option for metadata contexts; `None` when lengths disagree.
fn parse_queries(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    fn string(data: &[u8]) -> Option<(&[u8], &[u8])> {
        let length = be32(data.get(..4)?, 0) as usize;
        data[4..].split_at_checked(length).filter(|_| length <= NAME_BYTES_MAX)
    }
    let (name, rest) = string(data)?;
    let count = be32(rest.get(..4)?, 0) as usize;
    let mut rest = &rest[4..];
    let mut queries = Vec::new();
    // Each has a length, so that their number is bounded by that of the bytes.
    for _ in 0..count {
        let (query, behind) = string(rest)?;
        queries.push(query);
        rest = behind;
    }
    rest.is_empty().then_some((name, queries))
}

/// The export of a name, or why there is none. The empty name stands for the default: the only one, or the first.
fn find(exports: &[Export], name: &[u8]) -> Result<usize, &'static str> {
    let named = |export: &Export| name.is_empty() || export.name.as_bytes() == name;
    let there = exports.iter().enumerate().filter(|(_, export)| named(export) && !export.removed);
    let there = there.min_by_key(|(_, export)| export.namespace.nsid).map(|(index, _)| index);
    let why = if exports.iter().any(named) { REMOVED } else { "there is no such export; see the list" };
    there.ok_or(why)
}

fn list(exports: &[Export], output: &mut Vec<u8>) {
    for export in exports.iter().filter(|export| !export.removed) {
        let length = (export.name.len() as u32).to_be_bytes();
        let parts: [&[u8]; 3] = [&length, export.name.as_bytes(), export.description.as_bytes()];
        say(output, option::LIST, reply::SERVER, &parts.concat());
    }
    say(output, option::LIST, reply::ACK, b"");
}

fn say_info(output: &mut Vec<u8>, number: u32, kind: u16, parts: &[&[u8]]) {
    let data = [&kind.to_be_bytes()[..], &parts.concat()].concat();
    say(output, number, reply::INFO, &data);
}

fn say(output: &mut Vec<u8>, number: u32, kind: u32, data: &[u8]) {
    output.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    for word in [number, kind, data.len() as u32] {
        output.extend_from_slice(&word.to_be_bytes());
    }
    output.extend_from_slice(data);
}

#[cfg(test)]
mod tests {
    use super::super::export::tests::export;
    use super::*;
    use proptest::prelude::*;

    const FLAGS: [u8; 4] = [0, 0, 0, 3];

    fn option_bytes(number: u32, data: &[u8]) -> Vec<u8> {
        let head = [&IHAVEOPT.to_be_bytes()[..], &number.to_be_bytes(), &(data.len() as u32).to_be_bytes()];
        [&head.concat()[..], data].concat()
    }

    fn go_data(name: &[u8], kinds: &[u16]) -> Vec<u8> {
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend_from_slice(name);
        data.extend_from_slice(&(kinds.len() as u16).to_be_bytes());
        data.extend(kinds.iter().flat_map(|kind| kind.to_be_bytes()));
        data
    }

    /// Replies as (option, kind, data).
    fn replies(mut output: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
        let mut replies = Vec::new();
        while !output.is_empty() {
            assert_eq!(be64(output, 0), OPTION_REPLY_MAGIC);
            let end = 20 + be32(output, 16) as usize;
            replies.push((be32(output, 8), be32(output, 12), output[20..end].to_vec()));
            output = &output[end..];
        }
        replies
    }

    fn negotiate(input: &[u8]) -> (Result<(usize, Progress), Violation>, Vec<u8>) {
        let mut output = Vec::new();
        let result = Negotiation::new().advance(input, &[export()], &mut output);
        (result, output)
    }

    #[test]
    fn the_greeting_is_that_of_the_fixed_newstyle() {
        assert_eq!(greeting(), *b"NBDMAGICIHAVEOPT\0\x03");
    }

    #[test]
    fn go_tells_size_flags_and_block_sizes_and_ends_the_handshake() {
        let input = [&FLAGS[..], &option_bytes(8, b""), &option_bytes(option::GO, &go_data(b"ns1", &[3, 2]))]
            .concat();
        let (result, output) = negotiate(&input);
        assert_eq!(
            result,
            Ok((input.len(), Progress::Use { export: 0, structured: true, allocation: false }))
        );
        let replies = replies(&output);
        let kinds: Vec<(u32, u32)> = replies.iter().map(|(number, kind, _)| (*number, *kind)).collect();
        assert_eq!(kinds, [(8, 1), (7, 3), (7, 3), (7, 3), (7, 1)]);
        assert_eq!(
            replies[1].2,
            [&[0, 0][..], &(4_u64 << 20).to_be_bytes(), &0x1ed_u16.to_be_bytes()].concat()
        );
        assert_eq!(replies[2].2, [0, 3, 0, 0, 0, 1, 0, 0, 0x10, 0, 2, 0, 0, 0]);
        assert_eq!(replies[3].2, b"\0\x02a disk");
    }

    fn context_data(name: &[u8], queries: &[&[u8]]) -> Vec<u8> {
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend_from_slice(name);
        data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
        for query in queries {
            data.extend_from_slice(&(query.len() as u32).to_be_bytes());
            data.extend_from_slice(query);
        }
        data
    }

    #[test]
    fn what_is_allocated_is_told_to_who_asked_for_it_with_the_same_export() {
        let (list, set) = (option::LIST_META_CONTEXT, option::SET_META_CONTEXT);
        let options = |chosen: &[&[u8]]| {
            [
                option_bytes(8, b""),
                option_bytes(list, &context_data(b"ns1", &[])),
                option_bytes(list, &context_data(b"", &[b"other:", b"base:"])),
                option_bytes(list, &context_data(b"ns1", &[b"other:"])),
                option_bytes(set, &context_data(b"ns1", chosen)),
                option_bytes(option::GO, &go_data(b"", &[])),
            ]
            .concat()
        };
        for (chosen, allocation) in
            [(&[&b"other:x"[..], BASE_ALLOCATION][..], true), (&[b"base:"], false), (&[], false)]
        {
            let input = [&FLAGS[..], &options(chosen)].concat();
            let (result, output) = negotiate(&input);
            assert_eq!(result, Ok((input.len(), Progress::Use { export: 0, structured: true, allocation })));
            let contexts = replies(&output).into_iter().filter(|(_, kind, _)| *kind == reply::META_CONTEXT);
            let contexts: Vec<_> = contexts.map(|(number, _, data)| (number, data)).collect();
            let named = |id: u8| [&[0, 0, 0, id], BASE_ALLOCATION].concat();
            let expected = [(list, named(0)), (list, named(0)), (set, named(1))];
            assert_eq!(contexts, expected[..if allocation { 3 } else { 2 }]);
        }
        // Another export than that of the contexts has none.
        let exports = [export(), Export { name: "ns2".to_owned(), ..export() }];
        let options = [
            option_bytes(8, b""),
            option_bytes(set, &context_data(b"ns1", &[BASE_ALLOCATION])),
            option_bytes(option::GO, &go_data(b"ns2", &[])),
        ];
        let input = [&FLAGS[..], &options.concat()].concat();
        let (_, progress) = Negotiation::new().advance(&input, &exports, &mut Vec::new()).expect("valid");
        assert_eq!(progress, Progress::Use { export: 1, structured: true, allocation: false });
    }

    #[test]
    fn queries_whose_lengths_do_not_fit_are_refused() {
        let good = context_data(b"ns1", &[b"base:", b"x"]);
        assert_eq!(parse_queries(&good), Some((&b"ns1"[..], vec![&b"base:"[..], b"x"])));
        for end in 0..good.len() {
            assert_eq!(parse_queries(&good[..end]), None, "cut at {end}");
        }
        assert_eq!(parse_queries(&[&good[..], b"x"].concat()), None);
        let many = [&context_data(b"", &[])[..4], &u32::MAX.to_be_bytes()].concat();
        assert_eq!(parse_queries(&many), None);
    }

    #[test]
    fn export_name_answers_with_or_without_zeroes() {
        for (flags, length) in [(1_u8, 8 + 2 + 124), (3, 8 + 2)] {
            let input = [&[0, 0, 0, flags][..], &option_bytes(option::EXPORT_NAME, b"")].concat();
            let (result, output) = negotiate(&input);
            assert_eq!(
                result,
                Ok((input.len(), Progress::Use { export: 0, structured: false, allocation: false }))
            );
            assert_eq!(output.len(), length);
        }
        let input = [&FLAGS[..], &option_bytes(option::EXPORT_NAME, b"other")].concat();
        assert!(negotiate(&input).0.is_err());
    }

    #[test]
    fn the_handshake_goes_on_after_every_refused_option() {
        let mut input = FLAGS.to_vec();
        for (number, data) in [
            (option::LIST, &b""[..]),
            (option::LIST, b"x"),
            (5, b""),
            (11, b"abc"),
            (option::SET_META_CONTEXT, b""),
            (option::GO, b"\0\0\0\x09short"),
            (option::INFO, &go_data(b"missing", &[])),
            (77, &[0; OPTION_BYTES_MAX]),
            (option::ABORT, b""),
        ] {
            input.extend(option_bytes(number, data));
        }
        let (result, output) = negotiate(&input);
        assert_eq!(result, Ok((input.len(), Progress::End)));
        let kinds: Vec<u32> = replies(&output).iter().map(|(_, kind, _)| *kind).collect();
        assert_eq!(
            kinds,
            [
                reply::SERVER,
                reply::ACK,
                reply::ERR_INVALID,
                reply::ERR_UNSUP,
                reply::ERR_UNSUP,
                reply::ERR_INVALID,
                reply::ERR_INVALID,
                reply::ERR_UNKNOWN,
                reply::ERR_TOO_BIG,
                reply::ACK
            ]
        );
    }

    #[test]
    fn a_namespace_that_was_removed_is_neither_listed_nor_found() {
        let exports = [Export { removed: true, ..export() }, Export { name: "ns2".to_owned(), ..export() }];
        let options = [
            option_bytes(option::LIST, b""),
            option_bytes(option::INFO, &go_data(b"ns1", &[])),
            option_bytes(option::GO, &go_data(b"", &[])),
        ];
        let (mut output, input) = (Vec::new(), [&FLAGS[..], &options.concat()].concat());
        let (_, progress) = Negotiation::new().advance(&input, &exports, &mut output).expect("valid");
        assert_eq!(
            progress,
            Progress::Use { export: 1, structured: false, allocation: false },
            "the first that is there"
        );
        let replies = replies(&output);
        assert_eq!(replies[0].2, b"\0\0\0\x03ns2a disk");
        assert_eq!((replies[1].0, replies[1].1), (option::LIST, reply::ACK), "one is listed");
        assert_eq!((replies[2].1, &replies[2].2[..]), (reply::ERR_UNKNOWN, REMOVED.as_bytes()));
    }

    #[test]
    fn what_no_client_sends_ends_the_connection() {
        let magic = [&FLAGS[..], &[0; 16]].concat();
        let flags = [0, 0, 0, 4].to_vec();
        let huge = [&FLAGS[..], &option_bytes(3, b"")[..12], &u32::MAX.to_be_bytes()].concat();
        let endless = [&FLAGS[..], &option_bytes(5, b"").repeat(OPTIONS_MAX as usize + 1)].concat();
        for input in [magic, flags, huge, endless] {
            assert!(negotiate(&input).0.is_err());
        }
    }

    proptest! {
        #[test]
        fn the_outcome_does_not_depend_on_how_the_bytes_are_cut(cuts in prop::collection::vec(1_usize..40, 1..40)) {
            let input = [
                &FLAGS[..], &option_bytes(8, b""), &option_bytes(99, &[7; 9000]),
                &option_bytes(option::GO, &go_data(b"ns1", &[1, 2])), b"next",
            ].concat();
            let (whole, wanted) = negotiate(&input);
            let (mut negotiation, mut output) = (Negotiation::new(), Vec::new());
            let (mut start, mut end, mut cuts) = (0, 0, cuts.iter().cycle());
            let last = loop {
                end = input.len().min(end + cuts.next().expect("a cycle"));
                let (taken, progress) =
                    negotiation.advance(&input[start..end], &[export()], &mut output).expect("valid");
                start += taken;
                prop_assert!(end - start < OPTION_BYTES_MAX);
                if progress != Progress::More {
                    break progress;
                }
            };
            prop_assert_eq!(Ok((start, last)), whole);
            prop_assert_eq!(output, wanted);
        }

        #[test]
        fn no_bytes_panic_and_answers_are_bounded(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            number in 0_u32..12,
        ) {
            let random = negotiate(&bytes);
            prop_assert!(random.1.len() < 4096);
            let input = [&FLAGS[..], &option_bytes(number, &bytes)].concat();
            let (_, output) = negotiate(&input);
            prop_assert!(output.len() < 4096);
        }
    }
}

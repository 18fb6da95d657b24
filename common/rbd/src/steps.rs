//! Which calls of the library an operation is. Most are one. A long range is several, so that no call concerns more
//! than some hundred objects, and what has to be durable is followed by a flush where the library caches.

use ringfab_block::Operation;

use crate::native::Request;

/// The most bytes of a range that one call discards or zeroes: 256 objects of the usual size, each of which is a
/// request to a storage daemon. Pieces end at multiples of it, which are those of objects and stripes.
const PIECE_BYTES: u64 = 1 << 30;

/// The first call of an operation.
pub(crate) fn first(operation: &Operation) -> Request {
    match *operation {
        Operation::WriteZeroes { offset, length, .. } | Operation::Discard { offset, length } => {
            piece(offset, offset + length)
        }
        _ => Request::Whole,
    }
}

/// The call after one that has succeeded; none when the operation has ended. `flushes` says that what has to be
/// durable needs a flush.
pub(crate) fn next(operation: &Operation, done: Request, flushes: bool) -> Option<Request> {
    if let (Request::Range { offset, length }, Some((begin, whole))) = (done, operation.range())
        && offset + length < begin + whole
    {
        return Some(piece(offset + length, begin + whole));
    }
    (flushes && done != Request::Flush && is_durable(operation)).then_some(Request::Flush)
}

/// What comes next of a range from `offset` to `end`.
fn piece(offset: u64, end: u64) -> Request {
    let boundary = (offset / PIECE_BYTES + 1) * PIECE_BYTES;
    Request::Range { offset, length: end.min(boundary) - offset }
}

fn is_durable(operation: &Operation) -> bool {
    match *operation {
        Operation::Write { durable, .. }
        | Operation::WriteZeroes { durable, .. }
        | Operation::CompareAndWrite { durable, .. } => durable,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(operation: &Operation, flushes: bool) -> Vec<Request> {
        std::iter::successors(Some(first(operation)), |done| next(operation, *done, flushes)).collect()
    }

    #[test]
    fn a_long_range_is_cut_where_objects_end_and_is_covered_once() {
        let length = 2 * PIECE_BYTES;
        let parts = calls(&Operation::Discard { offset: PIECE_BYTES - 512, length }, true);
        assert_eq!(
            parts,
            [
                Request::Range { offset: PIECE_BYTES - 512, length: 512 },
                Request::Range { offset: PIECE_BYTES, length: PIECE_BYTES },
                Request::Range { offset: 2 * PIECE_BYTES, length: PIECE_BYTES - 512 },
            ]
        );
        let whole = Request::Range { offset: PIECE_BYTES, length: PIECE_BYTES };
        assert_eq!(calls(&Operation::Discard { offset: PIECE_BYTES, length: PIECE_BYTES }, false), [whole]);
    }

    #[test]
    fn what_has_to_be_durable_is_flushed_where_the_library_caches_and_only_there() {
        let zeroes = |durable| Operation::WriteZeroes { offset: 0, length: 512, deallocate: true, durable };
        let range = Request::Range { offset: 0, length: 512 };
        assert_eq!(calls(&zeroes(true), true), [range, Request::Flush]);
        assert_eq!(calls(&zeroes(true), false), [range]);
        assert_eq!(calls(&zeroes(false), true), [range]);
        assert_eq!(calls(&Operation::Flush, true), [Request::Whole]);
    }
}

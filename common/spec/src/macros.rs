//! How this crate declares things: wire structures with their offsets, open enumerations, bit fields.
//!
//! Each macro keeps a fact of a specification in one place: an offset beside its field, a name beside its
//! value, a bit range beside its accessor. What they generate is ordinary and has no macro in its interface.

use zerocopy::little_endian::{U16, U32, U64};

/// Declares a wire structure whose size and field offsets are asserted by the compiler.
///
/// Size alone is not enough: a structure can have the right size and a field two bytes off.
///
/// `align 8` behind the size is for what is moved about for every command: bytes that lie anywhere beside an
/// enumeration's tag are copied in pieces that do not match those that they were stored in, for which a processor
/// waits.
macro_rules! wire {
    ($(#[$meta:meta])* pub struct $name:ident[$size:literal] {
        $($(#[$fmeta:meta])* $offset:literal => $vis:vis $field:ident : $ty:ty,)+
    }) => {
        wire! {
            #[derive(::zerocopy::Unaligned)]
            $(#[$meta])*
            pub struct $name[$size, align 1] {
                $($(#[$fmeta])* $offset => $vis $field: $ty,)+
            }
        }
    };
    ($(#[$meta:meta])* pub struct $name:ident[$size:literal, align $align:literal] {
        $($(#[$fmeta:meta])* $offset:literal => $vis:vis $field:ident : $ty:ty,)+
    }) => {
        $(#[$meta])*
        #[derive(
            Clone, Debug, PartialEq, Eq,
            ::zerocopy::FromBytes, ::zerocopy::IntoBytes, ::zerocopy::KnownLayout, ::zerocopy::Immutable,
        )]
        #[repr(C, align($align))]
        pub struct $name {
            $($(#[$fmeta])* $vis $field: $ty,)+
        }

        const _: () = {
            assert!(core::mem::size_of::<$name>() == $size);
            assert!(core::mem::align_of::<$name>() == $align);
            $(assert!(core::mem::offset_of!($name, $field) == $offset);)+
        };

        impl $name {
            /// Size on the wire, in bytes.
            pub const SIZE: usize = $size;

            /// All bytes zero, as the specifications ask of reserved fields.
            #[inline]
            pub fn zeroed() -> Self {
                ::zerocopy::FromZeros::new_zeroed()
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::zeroed()
            }
        }
    };
}

/// Declares a set of specified values which stays open: an unknown value is data and keeps its number.
macro_rules! open_enum {
    ($(#[$meta:meta])* pub struct $name:ident(u8) { $($body:tt)* }) => {
        open_enum! {
            @open
            #[derive(
                ::zerocopy::FromBytes, ::zerocopy::IntoBytes, ::zerocopy::KnownLayout,
                ::zerocopy::Immutable, ::zerocopy::Unaligned,
            )]
            $(#[$meta])* pub struct $name(u8) { $($body)* }
        }
    };
    ($(#[$meta:meta])* pub struct $name:ident($int:ident) { $($body:tt)* }) => {
        open_enum! { @open $(#[$meta])* pub struct $name($int) { $($body)* } }
    };
    (@open $(#[$meta:meta])* pub struct $name:ident($int:ident) {
        $($(#[$cmeta:meta])* $constant:ident = $value:expr => $text:literal;)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $int);

        impl $name {
            $(
                #[doc = concat!($text, " (", stringify!($value), ").")]
                $(#[$cmeta])*
                pub const $constant: Self = Self($value);
            )+

            /// The specified name, or none when the value is reserved, vendor specific or newer than this crate.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$constant => Some($text),)+
                    _ => None,
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!(stringify!($name), " {:#04x}"), self.0),
                }
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, concat!(stringify!($name), "({:#04x}"), self.0)?;
                match self.name() {
                    Some(name) => write!(f, " {name})"),
                    None => f.write_str(")"),
                }
            }
        }

        impl From<$int> for $name {
            fn from(value: $int) -> Self {
                Self(value)
            }
        }

        impl From<$name> for $int {
            fn from(value: $name) -> Self {
                value.0
            }
        }

        impl $crate::macros::BitValue for $name {
            #[inline]
            fn from_bits(bits: u64) -> Self {
                Self(<$int as $crate::macros::BitValue>::from_bits(bits))
            }
            #[inline]
            fn into_bits(self) -> u64 {
                u64::from(self.0)
            }
        }
    };
}

/// Declares a register or a packed field by its bit ranges, written `high:low` as the specifications do.
macro_rules! bits {
    ($(#[$meta:meta])* pub struct $name:ident($storage:ty as $native:ty) {
        $($(#[$fmeta:meta])* $get:ident / $with:ident: $ty:ty = $high:literal:$low:literal;)+
    }) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, PartialEq, Eq, ::zerocopy::FromBytes, ::zerocopy::IntoBytes,
            ::zerocopy::KnownLayout, ::zerocopy::Immutable, ::zerocopy::Unaligned,
        )]
        #[repr(transparent)]
        pub struct $name($storage);

        impl $name {
            /// The value with exactly these bits; reserved bits are kept.
            #[inline]
            pub fn from_bits(bits: $native) -> Self {
                Self($crate::macros::BitStorage::store(u64::from(bits)))
            }

            /// The bits, reserved ones included, in the byte order of this machine.
            #[inline]
            pub fn bits(self) -> $native {
                <$native as $crate::macros::BitValue>::from_bits($crate::macros::BitStorage::load(self.0))
            }

            /// Every specified field, in the order of their declaration.
            pub const FIELDS: &'static [$crate::BitField] = &[
                $($crate::BitField { name: stringify!($get), high: $high, low: $low },)+
            ];

            $(
                $(#[$fmeta])*
                #[inline]
                pub fn $get(self) -> $ty {
                    let bits = $crate::macros::extract($crate::macros::BitStorage::load(self.0), $high, $low);
                    <$ty as $crate::macros::BitValue>::from_bits(bits)
                }

                #[doc = concat!("This value with `", stringify!($get), "` set.")]
                #[doc = " Panics when the value is wider than the field."]
                #[inline]
                #[must_use]
                pub fn $with(self, value: $ty) -> Self {
                    let bits = <$ty as $crate::macros::BitValue>::into_bits(value);
                    let old = $crate::macros::BitStorage::load(self.0);
                    Self($crate::macros::BitStorage::store($crate::macros::insert(old, bits, $high, $low)))
                }
            )+
        }

        impl Default for $name {
            fn default() -> Self {
                Self::from_bits(0)
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($name))$(.field(stringify!($get), &self.$get()))+.finish()
            }
        }
    };
}

pub(crate) use {bits, open_enum, wire};

/// A field of a register or of a packed field, for who shows all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitField {
    /// What it is called here.
    pub name: &'static str,
    /// Its highest bit.
    pub high: u8,
    /// Its lowest bit.
    pub low: u8,
}

impl BitField {
    /// Its value among all bits.
    pub fn of(self, bits: u64) -> u64 {
        extract(bits, self.high.into(), self.low.into())
    }
}

/// The integer that holds a bit field on the wire.
pub(crate) trait BitStorage: Copy {
    fn load(self) -> u64;
    fn store(bits: u64) -> Self;
}

/// A type that one field of a bit field can have.
pub(crate) trait BitValue {
    fn from_bits(bits: u64) -> Self;
    fn into_bits(self) -> u64;
}

macro_rules! storage {
    ($($storage:ty, $native:ty, $load:expr, $store:expr;)+) => {
        $(impl BitStorage for $storage {
            #[inline]
            fn load(self) -> u64 {
                let load: fn(Self) -> $native = $load;
                u64::from(load(self))
            }
            #[inline]
            fn store(bits: u64) -> Self {
                let store: fn($native) -> Self = $store;
                store(bits as $native)
            }
        })+
    };
}

storage! {
    u8, u8, |v| v, |v| v;
    U16, u16, U16::get, U16::new;
    U32, u32, U32::get, U32::new;
    U64, u64, U64::get, U64::new;
    zerocopy::big_endian::U16, u16, |v| v.get(), zerocopy::big_endian::U16::new;
    zerocopy::big_endian::U32, u32, |v| v.get(), zerocopy::big_endian::U32::new;
}

macro_rules! values {
    ($($int:ty),+) => {
        $(impl BitValue for $int {
            #[inline]
            fn from_bits(bits: u64) -> Self {
                bits as $int
            }
            #[inline]
            fn into_bits(self) -> u64 {
                u64::from(self)
            }
        })+
    };
}

values!(u8, u16, u32, u64);

impl BitValue for bool {
    #[inline]
    fn from_bits(bits: u64) -> Self {
        bits != 0
    }
    #[inline]
    fn into_bits(self) -> u64 {
        u64::from(self)
    }
}

/// Bits `high:low` of a value, shifted down.
#[inline]
pub(crate) const fn extract(value: u64, high: u32, low: u32) -> u64 {
    (value >> low) & mask(high, low)
}

/// The value with bits `high:low` replaced. A field value that does not fit is a programmer's error.
#[inline]
pub(crate) const fn insert(value: u64, field: u64, high: u32, low: u32) -> u64 {
    assert!(field <= mask(high, low), "the value is wider than its field");
    (value & !(mask(high, low) << low)) | (field << low)
}

const fn mask(high: u32, low: u32) -> u64 {
    u64::MAX >> (63 - (high - low))
}

#[cfg(test)]
#[expect(unreachable_pub, reason = "the macros declare public items, these tests are private")]
mod tests {
    use super::*;

    bits! {
        /// A register for these tests.
        pub struct Sample(U16 as u16) {
            /// Lowest.
            low / with_low: u8 = 3:0;
            /// Middle.
            flag / with_flag: bool = 4:4;
            /// Highest.
            high / with_high: u16 = 15:5;
        }
    }

    #[test]
    fn every_field_is_listed_with_its_name_and_its_value_is_found() {
        let bits = Sample::default().with_flag(true).with_high(5).bits();
        let all = Sample::FIELDS.iter().map(|field| (field.name, field.of(bits.into())));
        assert!(all.eq([("low", 0), ("flag", 1), ("high", 5)]));
    }

    #[test]
    fn setting_a_field_leaves_the_others_alone() {
        let all = Sample::from_bits(u16::MAX);
        assert_eq!(all.with_flag(false).bits(), 0xffef);
        assert_eq!(all.with_low(0).bits(), 0xfff0);
        assert_eq!(all.with_high(0).bits(), 0x001f);
    }

    #[test]
    #[should_panic(expected = "wider than its field")]
    fn a_value_that_does_not_fit_its_field_is_refused() {
        let _ = Sample::default().with_low(16);
    }

    #[test]
    fn the_widest_mask_covers_the_whole_word() {
        assert_eq!(mask(63, 0), u64::MAX);
        assert_eq!(mask(7, 7), 1);
    }
}

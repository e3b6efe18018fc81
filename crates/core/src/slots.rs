//! Numbers of rows, a type for each kind of row: a number of one kind does not compile where a
//! number of another kind is wanted.
//!
//! A number has 32 bits, to keep links between many small things short, and the highest one stands
//! for no row. The types cost nothing at run time. [`slots!`](crate::slots!) declares them.

use core::fmt;

/// The number of a row in a table, or none.
pub trait Slot: Copy + Ord + fmt::Debug {
    /// No row, in no table: the end of links.
    const NONE: Self;

    /// Returns the slot of this number.
    fn new(number: u32) -> Self;

    /// Returns its number; for none, the highest one.
    fn number(self) -> u32;
}

/// Declares types that implement [`Slot`], each with its documentation.
#[macro_export]
macro_rules! slots {
    ($($(#[$meaning:meta])* $visibility:vis $name:ident;)+) => {$(
        $(#[$meaning])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        $visibility struct $name(u32);

        impl $name {
            /// No slot.
            pub const NONE: Self = Self(u32::MAX);

            /// Returns whether it is no slot.
            #[allow(dead_code)] // not every kind has links that end
            #[inline]
            pub const fn is_none(self) -> bool {
                self.0 == u32::MAX
            }
        }

        impl $crate::slots::Slot for $name {
            const NONE: Self = Self::NONE;

            #[inline]
            fn new(number: u32) -> Self {
                Self(number)
            }

            #[inline]
            fn number(self) -> u32 {
                self.0
            }
        }

        impl ::core::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                ::core::fmt::Debug::fmt(&self.0, f)
            }
        }
    )+};
}

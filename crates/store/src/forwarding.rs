//! Pools and stores in front of others: each method calls that of the pool or store below.
//!
//! A type that implements [`ForwardingPool`] is a [`Pool`], and one that implements
//! [`ForwardingStore`] is a [`Store`]. Each implements only the methods that do more than that
//! call.

use crate::disk::{Disk, DiskDone};
use crate::layout::PoolSeen;
use crate::snapshots::Snapshots;
use crate::{
    Completion, Geometry, Looked, Pool, PoolHealth, Salvaged, Space, Store, StoreError, Submission,
};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::request::Operation;
use evenkeel_core::units::ByteCount;

/// Declares [`ForwardingPool`] from the signatures of all methods of a pool.
macro_rules! forwarding_pool {
    ($(fn $name:ident(&self $(, $argument:ident: $kind:ty)*) $(-> $result:ty)?;)*) => {
        /// A pool in front of another one.
        #[allow(clippy::missing_errors_doc, reason = "the errors are those of `Pool`")]
        pub trait ForwardingPool: Send + Sync {
            /// Returns the pool that the other methods call.
            fn below(&self) -> &dyn Pool;
            $(
                #[doc = concat!("As [`Pool::", stringify!($name), "`].")]
                fn $name(&self $(, $argument: $kind)*) $(-> $result)? {
                    self.below().$name($($argument),*)
                }
            )*
        }

        impl<P: ForwardingPool> Pool for P {
            $(
                fn $name(&self $(, $argument: $kind)*) $(-> $result)? {
                    ForwardingPool::$name(self $(, $argument)*)
                }
            )*
        }
    };
}

forwarding_pool! {
    fn describe(&self) -> String;
    fn create(&self, id: VolumeId, size: ByteCount) -> Result<(), StoreError>;
    fn create_encrypted(&self, id: VolumeId, size: ByteCount) -> Result<(), StoreError>;
    fn is_encrypted(&self, id: VolumeId) -> bool;
    fn open(&self, id: VolumeId, size: ByteCount) -> Result<Box<dyn Store>, StoreError>;
    fn salvage(&self, id: VolumeId) -> Result<Salvaged, StoreError>;
    fn resize(&self, id: VolumeId, from: ByteCount, to: ByteCount) -> Result<(), StoreError>;
    fn delete(&self, id: VolumeId) -> Result<(), StoreError>;
    fn list(&self) -> Result<Vec<(VolumeId, ByteCount)>, StoreError>;
    fn filled(&self, id: VolumeId) -> Option<ByteCount>;
    fn look_at(&self, place: u64) -> Result<Looked, StoreError>;
    fn has(&self, id: VolumeId) -> Result<bool, StoreError>;
    fn space(&self) -> Result<Option<Space>, StoreError>;
    fn health(&self) -> PoolHealth;
    fn look_around(&self) -> Result<Option<PoolSeen>, StoreError>;
    fn recovery(&self) -> Option<String>;
    fn wait_closed(&self, id: VolumeId) -> Result<(), StoreError>;
    fn note_failed_flush(&self, id: VolumeId) -> Result<(), StoreError>;
    fn has_failed_flush(&self, id: VolumeId) -> Result<bool, StoreError>;
    fn forget_failed_flush(&self, id: VolumeId) -> Result<(), StoreError>;
    fn is_taken_over(&self) -> bool;
    fn when_taken_over(&self, tell: Box<dyn FnOnce() + Send>);
    fn instance(&self) -> Option<String>;
    fn look(&self) -> Result<(), StoreError>;
    fn check_owner(&self) -> Result<(), StoreError>;
    fn is_fenced(&self, instance: &str) -> Result<bool, StoreError>;
    fn fence(&self, node: &str) -> Result<(), StoreError>;
    fn snapshots(&self) -> Option<&dyn Snapshots>;
}

/// Declares [`ForwardingStore`] from the signatures of all methods of a store.
macro_rules! forwarding_store {
    (
        $(fn $read:ident(&self $(, $argument:ident: $kind:ty)*) -> $result:ty;)*
        mut
        $(fn $change:ident(&mut self $(, $given:ident: $of:ty)*) $(-> $changed:ty)?;)*
    ) => {
        /// A store in front of another one.
        pub trait ForwardingStore: Send {
            /// Returns the store that the other methods call.
            fn below(&self) -> &dyn Store;
            /// Returns the store that the other methods call, for changes.
            fn below_mut(&mut self) -> &mut dyn Store;
            $(
                #[doc = concat!("As [`Store::", stringify!($read), "`].")]
                fn $read(&self $(, $argument: $kind)*) -> $result {
                    self.below().$read($($argument),*)
                }
            )*
            $(
                #[doc = concat!("As [`Store::", stringify!($change), "`].")]
                fn $change(&mut self $(, $given: $of)*) $(-> $changed)? {
                    self.below_mut().$change($($given),*)
                }
            )*
        }

        impl<S: ForwardingStore> Store for S {
            $(
                fn $read(&self $(, $argument: $kind)*) -> $result {
                    ForwardingStore::$read(self $(, $argument)*)
                }
            )*
            $(
                fn $change(&mut self $(, $given: $of)*) $(-> $changed)? {
                    ForwardingStore::$change(self $(, $given)*)
                }
            )*
        }
    };
}

forwarding_store! {
    fn geometry(&self) -> Geometry;
    fn writes_zeroes(&self, operation: Operation) -> bool;
    fn is_idle(&self) -> bool;
    fn must_reopen(&self) -> bool;
    mut
    fn submit(&mut self, submission: Submission, disk: &mut dyn Disk);
    fn disk_done(&mut self, done: DiskDone, disk: &mut dyn Disk);
    fn poll(&mut self) -> Option<Completion>;
    fn resized(&mut self, size: ByteCount);
    fn close(&mut self, disk: &mut dyn Disk);
    fn attend(&mut self, disk: &mut dyn Disk);
    fn rest(&mut self, disk: &mut dyn Disk);
}

#[cfg(test)]
mod tests {
    /// Returns the names of the methods in the part of a source that begins with `start`.
    fn methods<'a>(source: &'a str, start: &str) -> Vec<&'a str> {
        let (_, part) = source.split_once(start).unwrap();
        let (part, _) = part.split_once("\n}\n").unwrap();
        let names = part.lines().filter_map(|line| line.trim_start().strip_prefix("fn "));
        let mut names: Vec<&str> = names.filter_map(|rest| Some(rest.split_once('(')?.0)).collect();
        names.sort_unstable();
        names
    }

    /// A method that is missing here would use its default, whatever the pool or store below does.
    #[test]
    fn every_method_is_forwarded() {
        let traits = include_str!("lib.rs");
        let here = include_str!("forwarding.rs");
        for (declared, forwarded) in [
            ("pub trait Pool: Send + Sync {\n", "\nforwarding_pool! {\n"),
            ("pub trait Store: Send {\n", "\nforwarding_store! {\n"),
        ] {
            assert_eq!(methods(traits, declared), methods(here, forwarded));
        }
    }
}

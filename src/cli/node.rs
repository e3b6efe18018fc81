//! Flags of `evenkeel node`.

use super::{Connection, Output, volume_id};
use clap::{Args, Subcommand};
use evenkeel_core::ids::VolumeId;

#[derive(Args, Debug)]
pub struct NodeArgs {
    #[command(subcommand)]
    pub verb: NodeVerb,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Subcommand, Debug)]
pub enum NodeVerb {
    /// List the nodes.
    Ls,
    /// Move a node's volumes to others, and give it no new ones.
    Drain {
        /// The node's name.
        #[arg(value_name = "NODE")]
        node: String,
    },
    /// Take a node that was drained or removed back into service.
    Join {
        /// The node's name.
        #[arg(value_name = "NODE")]
        node: String,
    },
    /// Remove a node that has no volumes: no process of this name is let in any more.
    Remove {
        /// The node's name.
        #[arg(value_name = "NODE")]
        node: String,
    },
    /// Move a volume to a node, with those that share a host's limits with it.
    Move {
        /// The volume's id.
        #[arg(value_name = "VOLUME", value_parser = volume_id)]
        volume: VolumeId,
        /// The node's name.
        #[arg(value_name = "NODE")]
        node: String,
    },
}

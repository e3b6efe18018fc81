//! Pages: HTML without scripts and other files, with tables and charts that are readable in print,
//! on a phone, in light and in dark.
//!
//! [`chart`] draws SVG, [`curves`] draws series over time with it. [`html`] has the frame and the
//! elements of every page. A [`Page`] is a page of sections, as the planner answers with.
//!
//! The crate has no clock, files, threads or sockets. The caller provides the words and the
//! figures.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod chart;
pub mod curves;
mod error;
pub mod html;
pub mod page;

pub use error::DrawError;
pub use page::Page;

//! The live table of volumes: two samples give rates, rates give rows, rows give the screen.

pub mod rows;
pub mod screen;
mod view;

#[cfg(test)]
mod tests;

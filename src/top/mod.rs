//! The live table of volumes: two samples make rates, rates make rows, rows make a screen.

pub mod rows;
pub mod sample;
pub mod screen;
mod view;

#[cfg(test)]
mod tests;

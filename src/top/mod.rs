//! The screen of `evenkeel top`, which shows the rows of `evenkeel_client::top`.

pub mod screen;
mod view;

#[cfg(test)]
mod tests;

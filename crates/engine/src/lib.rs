//! (module docs follow)

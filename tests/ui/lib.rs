//! Nothing: the tests beside it compile files that use the libraries wrongly.

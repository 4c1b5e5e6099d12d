//! Arguments that are numbers.

use syn::{Error, Expr, ExprLit, ExprUnary, Lit, Result, UnOp, parse::ParseStream};

use crate::keys::ungrouped;

/// Reads a whole number above zero and up to `most`, or an expression. `what` says what the argument is.
pub(crate) fn parse(input: ParseStream<'_>, most: u64, what: &str) -> Result<Expr> {
    let value = ungrouped(input.parse()?);
    let is_number = matches!(&value, Expr::Lit(_) | Expr::Unary(ExprUnary { op: UnOp::Neg(_), .. }));
    if !is_number || literal(&value).is_some_and(|number| (1..=most).contains(&number)) {
        return Ok(value);
    }
    Err(Error::new_spanned(&value, what))
}

/// The number that is written, if it is one.
pub(crate) fn literal(value: &Expr) -> Option<u64> {
    match value {
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => number.base10_parse().ok(),
        _ => None,
    }
}

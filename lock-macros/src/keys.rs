//! The keys to lock: one key, a list of keys, or a collection that is known only at run time.

use syn::{Error, Expr, ExprArray, ExprLit, Lit, LitStr, Result, parse::ParseStream};

/// The value of `key` or of `keys`.
pub(crate) enum Keys {
    One(Key),
    /// `keys = [..]`, with one key at least.
    List(Vec<Key>),
    /// Any other `keys = ..`, which is evaluated as it stands.
    Collection(Expr),
}

/// One key.
pub(crate) enum Key {
    Template(LitStr),
    Expression(Expr),
}

impl Keys {
    /// Reads the value of `key`.
    pub(crate) fn parse_one(input: ParseStream<'_>) -> Result<Self> {
        match ungrouped(input.parse()?) {
            Expr::Array(list) => {
                let what = "a `key` is one key; for several, all or none of them, write `keys = [..]`";
                Err(Error::new_spanned(list, what))
            }
            value => Key::new(value).map(Self::One),
        }
    }

    /// Reads the value of `keys`.
    pub(crate) fn parse_several(input: ParseStream<'_>) -> Result<Self> {
        let value = ungrouped(input.parse()?);
        match &value {
            Expr::Array(list) => Self::list(list),
            Expr::Lit(one) => {
                let what =
                    "`keys` is a list, as in `keys = [\"goods:<from>\", \"goods:<to>\"]`; for one key write `key`";
                Err(Error::new_spanned(one, what))
            }
            _ if is_dressed_list(&value) => {
                let what = "write the list by itself, `keys = [..]`: only there are its strings templates";
                Err(Error::new_spanned(value, what))
            }
            _ => Ok(Self::Collection(value)),
        }
    }

    fn list(list: &ExprArray) -> Result<Self> {
        if list.elems.is_empty() {
            let what = "an empty list of keys; name what is locked, as in `keys = [\"goods:<from>\", \"goods:<to>\"]`";
            return Err(Error::new_spanned(list, what));
        }
        list.elems.iter().map(|value| Key::new(ungrouped(value.clone()))).collect::<Result<_>>().map(Self::List)
    }

    pub(crate) fn are_several(&self) -> bool {
        !matches!(self, Self::One(_))
    }
}

impl Key {
    fn new(value: Expr) -> Result<Self> {
        match value {
            Expr::Lit(ExprLit { lit: Lit::Str(template), .. }) => Ok(Self::Template(template)),
            Expr::Lit(other) => {
                let what = "a key is a string such as \"goods:<id>\", or an expression that gives one";
                Err(Error::new_spanned(other, what))
            }
            other => Ok(Self::Expression(other)),
        }
    }
}

/// Takes an expression out of the invisible brackets that `macro_rules!` puts around it.
pub(crate) fn ungrouped(mut value: Expr) -> Expr {
    while let Expr::Group(group) = value {
        value = *group.expr;
    }
    value
}

/// Returns whether `value` is a list that a reader would take for `[..]`.
fn is_dressed_list(value: &Expr) -> bool {
    match value {
        Expr::Macro(call) => call.mac.path.segments.last().is_some_and(|name| name.ident == "vec"),
        Expr::Reference(reference) => matches!(*reference.expr, Expr::Array(_)),
        _ => false,
    }
}

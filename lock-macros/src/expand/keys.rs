//! The code that makes the keys and their label.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::{Ident, Path, Result, spanned::Spanned};

use crate::{
    errors::Errors,
    keys::{Key, Keys},
    names::Names,
    template::Template,
};

impl Keys {
    /// Writes an expression for the key or keys of a function with these `names`.
    pub(crate) fn expand(&self, names: &Names, krate: &Path, errors: &mut Errors) -> Option<TokenStream> {
        match self {
            Self::One(key) => errors.keep(key.expand(names, krate)),
            Self::List(keys) => {
                let keys: Vec<_> = keys.iter().map(|key| errors.keep(key.expand(names, krate))).collect();
                let keys: Option<Vec<_>> = keys.into_iter().collect();
                keys.map(|keys| quote!([#(#krate::__private::key(&#keys)),*]))
            }
            Self::Collection(keys) => Some(keys.to_token_stream()),
        }
    }

    /// Writes the label for metrics: the templates as they are written, or the path of the function if a key is not a
    /// template.
    pub(crate) fn label(&self, function: &Ident) -> TokenStream {
        let templates = match self {
            Self::One(Key::Template(template)) => Some(template.value()),
            Self::List(keys) => keys.iter().map(Key::template).collect::<Option<Vec<_>>>().map(|list| list.join(", ")),
            _ => None,
        };
        match templates {
            Some(templates) => templates.into_token_stream(),
            None => {
                let name = format!("::{function}");
                quote!(::core::concat!(::core::module_path!(), #name))
            }
        }
    }
}

impl Key {
    fn template(&self) -> Option<String> {
        match self {
            Self::Template(template) => Some(template.value()),
            Self::Expression(_) => None,
        }
    }

    fn expand(&self, names: &Names, krate: &Path) -> Result<TokenStream> {
        match self {
            Self::Template(template) => Template::parse(template, names).map(|template| template.expand(krate)),
            Self::Expression(key) => Ok(quote_spanned!(key.span()=> &(#key))),
        }
    }
}

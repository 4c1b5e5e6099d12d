//! The names in a function that the values of its key may use.

use proc_macro2::{Ident, Span};
use syn::{
    Attribute, Error, FnArg, Macro, Pat, PatIdent, Result, Signature,
    ext::IdentExt,
    visit::{self, Visit},
};

use crate::boxed::{Boxed, Prologue};

/// The names that a value of one word may use.
#[derive(Default)]
pub(crate) struct Names {
    /// `self` and what the patterns of the arguments bind.
    arguments: Vec<Ident>,
    /// The const parameters.
    constants: Vec<Ident>,
    /// The arguments that the body must own, by the names that the body has for them.
    owned: Vec<Owned>,
    /// The name that `lease = name` binds. It does not exist yet when the key is made.
    lease: Option<Ident>,
    /// Whether a macro in the pattern of an argument may bind more.
    open: bool,
}

/// An argument, by a name that its pattern binds.
pub(crate) struct Owned {
    pub(crate) name: Ident,
    /// The `#[cfg(…)]` of the argument.
    pub(crate) cfgs: Vec<Attribute>,
}

impl Names {
    pub(crate) fn of(signature: &Signature) -> Self {
        let mut names = Self::default();
        for argument in &signature.inputs {
            match argument {
                FnArg::Receiver(receiver) => {
                    let name = Ident::new("self", receiver.self_token.span);
                    names.arguments.push(name.clone());
                    names.owned.push(Owned { name, cfgs: Vec::new() });
                }
                FnArg::Typed(argument) => names.add(&argument.pat, &argument.attrs),
            }
        }
        names.constants = signature.generics.const_params().map(|parameter| parameter.ident.clone()).collect();
        names
    }

    /// Collects the names in scope at the beginning of the body of `boxed`.
    pub(crate) fn inside(signature: &Signature, boxed: &Boxed) -> Self {
        let mut names = Self::of(signature);
        let Prologue { patterns, .. } = &boxed.prologue;
        if !patterns.is_empty() {
            let outside = std::mem::take(&mut names.arguments);
            names.owned.clear();
            patterns.iter().for_each(|(attributes, pattern)| names.add(pattern, attributes));
            // `#[async_trait]` invents names for the arguments that are patterns.
            names.arguments.retain(|name| name != "__self");
            for name in outside.into_iter().rev() {
                if !name.to_string().starts_with("__") && !names.arguments.contains(&name) {
                    names.arguments.insert(0, name);
                }
            }
        }
        names
    }

    /// Adds the names that the pattern of an argument binds.
    fn add(&mut self, pattern: &Pat, attributes: &[Attribute]) {
        let before = self.arguments.len();
        self.visit_pat(pattern);
        let cfgs: Vec<_> = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).cloned().collect();
        let owned = self.arguments[before..].iter().map(|name| Owned { name: name.clone(), cfgs: cfgs.clone() });
        self.owned.extend(owned);
    }

    /// Returns the arguments that the body must own.
    pub(crate) fn owned(&self) -> &[Owned] {
        &self.owned
    }

    pub(crate) fn has(&self, word: &Ident) -> bool {
        self.find(&word.unraw()).is_some()
    }

    /// Returns the span of a name, or `None` if the function has no such name. `word` is written without `r#`.
    pub(crate) fn span(&self, word: &Ident) -> Option<Span> {
        self.find(word).map(Ident::span)
    }

    /// Returns a name as the function writes it, or `None` if the function has no such name. `word` is written without
    /// `r#`.
    pub(crate) fn find(&self, word: &Ident) -> Option<&Ident> {
        self.known().find(|name| name.unraw() == *word)
    }

    /// Rejects a word that is not one of these names.
    ///
    /// A word with a capital is left to the compiler: it is not an argument, but may be a constant, or a const parameter of
    /// the `impl`, which the attribute of a method cannot see.
    pub(crate) fn check(&self, word: &Ident) -> std::result::Result<(), String> {
        if self.open || self.has(word) || word.unraw().to_string().starts_with(char::is_uppercase) && word != "Self" {
            return Ok(());
        }
        let hint = if word == "self" {
            "; only a method has a `self`".to_owned()
        } else if self.lease.as_ref() == Some(word) {
            "; the lease is there when the key has been locked, not before".to_owned()
        } else {
            String::new()
        };
        Err(format!("`<{word}>` is not an argument, the function has {}{hint}", self.listed()))
    }

    /// Returns the names as a message lists them.
    pub(crate) fn listed(&self) -> String {
        let known: Vec<_> = self.known().map(|name| format!("`{name}`")).collect();
        if known.is_empty() { "no arguments".to_owned() } else { known.join(", ") }
    }

    /// Adds the name that `lease = name` binds, and rejects a name that would shadow an argument.
    pub(crate) fn add_lease(&mut self, lease: Option<&Ident>) -> Result<()> {
        self.lease = lease.cloned();
        match lease {
            Some(lease) if self.has(lease) => {
                let message = format!("an argument of the function is called `{lease}` already; choose another name");
                Err(Error::new(lease.span(), message))
            }
            _ => Ok(()),
        }
    }

    /// Returns an argument for an example of a value.
    pub(crate) fn example(&self) -> Option<&Ident> {
        self.arguments.iter().find(|name| *name != "self")
    }

    fn known(&self) -> impl Iterator<Item = &Ident> {
        self.arguments.iter().chain(&self.constants)
    }
}

impl<'ast> Visit<'ast> for Names {
    fn visit_pat_ident(&mut self, pattern: &'ast PatIdent) {
        self.arguments.push(pattern.ident.clone());
        visit::visit_pat_ident(self, pattern);
    }

    fn visit_macro(&mut self, _: &'ast Macro) {
        self.open = true;
    }
}

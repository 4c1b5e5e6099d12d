//! The function under the attribute. Its body stays tokens: it is put back as it was written.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::{
    Attribute, Error, FnArg, Macro, Pat, PatIdent, Result, ReturnType, Signature, Token, Type, Visibility,
    ext::IdentExt,
    parse::{Parse, ParseStream},
    visit::{self, Visit},
};

use crate::{
    body::Body,
    boxed::{Boxed, Prologue},
};

/// A function or method, with or without a body.
pub(crate) struct Function {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) signature: Signature,
    pub(crate) body: Option<Body>,
}

impl Function {
    /// Returns the type that the body gives; none where none is written.
    pub(crate) fn output<'f>(&'f self, boxed: Option<&'f Boxed>) -> Option<&'f Type> {
        match (boxed, &self.signature.output) {
            (Some(boxed), _) => Some(&boxed.output),
            (None, ReturnType::Type(_, output)) => Some(output),
            (None, ReturnType::Default) => None,
        }
    }
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        let start = input.fork();
        let signature = input.parse().map_err(|error| refuse_other_items(&start).err().unwrap_or(error))?;
        let body = if input.parse::<Option<Token![;]>>()?.is_some() { None } else { Some(input.parse()?) };
        Ok(Self { attributes, visibility, signature, body })
    }
}

/// The function as it was written.
impl ToTokens for Function {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        let Self { attributes, visibility, signature, body } = self;
        tokens.extend(quote!(#(#attributes)* #visibility #signature));
        match body {
            None => Token![;](Span::call_site()).to_tokens(tokens),
            Some(Body { brace, attributes, statements }) => brace.surround(tokens, |tokens| {
                tokens.extend(quote!(#(#attributes)* #statements));
            }),
        }
    }
}

/// Says what the attribute stands on, where that is known not to be a function.
fn refuse_other_items(input: ParseStream<'_>) -> Result<()> {
    const QUALIFIERS: [&str; 4] = ["unsafe", "auto", "extern", "default"];
    if is_closure(&input.fork().parse()?) {
        let message = "`#[distributed_lock]` goes on an `async fn`, not on a closure; \
                       to run a closure under a lock give it to `LockRequest::run`";
        return Err(input.error(message));
    }
    let mut word = input.call(Ident::parse_any)?;
    while QUALIFIERS.iter().any(|qualifier| word == qualifier) && input.peek(Ident::peek_any) {
        word = input.call(Ident::parse_any)?;
    }
    let hint = match word.to_string().as_str() {
        "impl" => "put it on the methods",
        "trait" => "put it on the methods of the implementations",
        "mod" => "put it on the functions",
        "struct" | "enum" | "union" | "const" | "static" | "type" | "use" | "let" | "macro_rules" | "extern" => {
            "there is nothing to run under a lock"
        }
        _ => return Ok(()),
    };
    Err(Error::new(word.span(), format!("`#[distributed_lock]` goes on an `async fn`, not on this `{word}`; {hint}")))
}

/// Returns whether `item` is a closure, which stands where an expression does and not where an item does.
pub(crate) fn is_closure(item: &TokenStream) -> bool {
    const QUALIFIERS: [&str; 4] = ["const", "static", "async", "move"];
    let qualifier = |tree: &TokenTree| matches!(tree, TokenTree::Ident(word) if QUALIFIERS.iter().any(|q| word == q));
    let first = item.clone().into_iter().find(|tree| !qualifier(tree));
    matches!(first, Some(TokenTree::Punct(sign)) if sign.as_char() == '|')
}

/// The names that a one-word value in a key may have.
#[derive(Default)]
pub(crate) struct Names {
    /// `self` and what the patterns of the arguments bind.
    arguments: Vec<Ident>,
    /// The const parameters.
    constants: Vec<Ident>,
    /// What the body is to own, all arguments as a rule.
    owned: Vec<Owned>,
    /// What `lease = name` binds, which is no name yet when the key is made.
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

    /// The names that there are where the body of `boxed` begins.
    pub(crate) fn inside(signature: &Signature, boxed: &Boxed) -> Self {
        let mut names = Self::of(signature);
        let Prologue { patterns, .. } = &boxed.prologue;
        if !patterns.is_empty() {
            let outside = std::mem::take(&mut names.arguments);
            names.owned.clear();
            patterns.iter().for_each(|(attributes, pattern)| names.add(pattern, attributes));
            // `#[async_trait]` made up names for the arguments that are patterns.
            names.arguments.retain(|name| name != "__self");
            for name in outside.into_iter().rev() {
                if !name.to_string().starts_with("__") && !names.arguments.contains(&name) {
                    names.arguments.insert(0, name);
                }
            }
        }
        names
    }

    /// Takes in what the pattern of an argument binds.
    fn add(&mut self, pattern: &Pat, attributes: &[Attribute]) {
        let before = self.arguments.len();
        self.visit_pat(pattern);
        let cfgs: Vec<_> = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).cloned().collect();
        let owned = self.arguments[before..].iter().map(|name| Owned { name: name.clone(), cfgs: cfgs.clone() });
        self.owned.extend(owned);
    }

    /// Returns the arguments that the body is to own.
    pub(crate) fn owned(&self) -> &[Owned] {
        &self.owned
    }

    pub(crate) fn has(&self, word: &Ident) -> bool {
        self.find(&word.unraw()).is_some()
    }

    /// Returns where the name comes from; `word` without `r#`.
    pub(crate) fn span(&self, word: &Ident) -> Option<Span> {
        self.find(word).map(Ident::span)
    }

    /// Returns the name as the function has it; `word` without `r#`.
    pub(crate) fn find(&self, word: &Ident) -> Option<&Ident> {
        self.known().find(|name| name.unraw() == *word)
    }

    /// Refuses a word that is none of these names.
    pub(crate) fn check(&self, word: &Ident) -> std::result::Result<(), String> {
        if self.open || self.has(word) {
            return Ok(());
        }
        let known: Vec<_> = self.known().map(|name| format!("`{name}`")).collect();
        let known = if known.is_empty() { "no arguments".to_owned() } else { known.join(", ") };
        let hint = if word == "self" {
            "; only a method has a `self`".to_owned()
        } else if self.lease.as_ref() == Some(word) {
            "; the lease is there when the key has been locked, not before".to_owned()
        } else {
            format!("; for a constant write its path, as in `<self::{word}>`")
        };
        Err(format!("`<{word}>` is no argument, the function has {known}{hint}"))
    }

    /// Takes note of what `lease = name` binds; refuses a name that would hide an argument.
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

    /// Returns an argument to show how its value is written.
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

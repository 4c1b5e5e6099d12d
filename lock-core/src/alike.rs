//! Methods that are written alike for many types.

/// Implements methods that take nothing but the value, and return a part of it.
macro_rules! getters {
    ($this:ident: $type:ident => $($(#[$attribute:meta])* $name:ident: $part:ty = $value:expr;)*) => {
        impl $type {$(
            $(#[$attribute])*
            #[must_use]
            pub fn $name(&self) -> $part {
                let $this = self;
                $value
            }
        )*}
    };
}

/// Implements methods that set a field of a value, and return the value.
macro_rules! sets {
    ($type:ident => $($(#[$attribute:meta])* $vis:vis $setter:ident($($value:ident: $given:ty)?) => $($field:ident).+ = $set:expr;)*) => {
        impl $type {$(
            $(#[$attribute])*
            $vis fn $setter(mut self, $($value: $given)?) -> Self {
                self.$($field).+ = $set;
                self
            }
        )*}
    };
}

/// Implements a trait of `fmt` with a text that a value has.
macro_rules! says {
    ($trait:ident for $type:ident: $this:ident => $text:expr) => {
        impl std::fmt::$trait for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let $this = self;
                f.write_str($text)
            }
        }
    };
}

/// Implements `Debug` with some fields of a value.
macro_rules! shows {
    ($type:ident $(, $field:ident)*) => {
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($type))$(.field(stringify!($field), &self.$field))*.finish_non_exhaustive()
            }
        }
    };
}

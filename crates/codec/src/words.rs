//! Enumerations with one word for each variant.

/// Declares an enum with a word for each variant, for metric labels, logs and documents: `ALL`, `as_str` and `Display`.
#[doc(hidden)]
#[macro_export]
macro_rules! words {
    (
        $(#[$of_enum:meta])*
        $visibility:vis enum $name:ident {
            $($(#[$of_variant:meta])* $variant:ident $(= $number:literal)? => $word:literal,)*
        }
    ) => {
        $(#[$of_enum])*
        $visibility enum $name {
            $($(#[$of_variant])* $variant $(= $number)?,)*
        }

        impl $name {
            /// Every variant, in the order of declaration.
            $visibility const ALL: [Self; { [$($word),*].len() }] = [$(Self::$variant),*];

            /// The one word for metric labels, logs and documents.
            #[must_use]
            $visibility const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

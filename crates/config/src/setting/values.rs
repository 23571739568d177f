//! The values of settings: a struct with a field for each, all resolved and all shown by one declaration.

use super::{Name, Setting};
use crate::form::Form;
use crate::source::{Source, Sourced};

/// Declares a struct of settings: each field with its type and its row of the table. Behind them, after `=>`, fields
/// that are no setting, each with a function that makes its value from the layers.
macro_rules! setting_values {
    (
        $(#[$of_struct:meta])*
        pub struct $name:ident {
            $($(#[$of_field:meta])* $field:ident: $value:ty = $setting:ident;)*
            $(=> $(#[$of_part:meta])* $part:ident: $part_type:ty = $resolve:expr;)*
        }
    ) => {
        $(#[$of_struct])*
        #[derive(Clone, Debug)]
        pub struct $name {
            $($(#[$of_field])* pub $field: $crate::Sourced<$value>,)*
            $($(#[$of_part])* pub $part: $part_type,)*
        }

        impl $name {
            pub(super) fn resolve(layers: &$crate::layers::Layers<'_>) -> Result<Self, $crate::ConfigError> {
                Ok(Self { $($field: layers.resolve(&$setting)?,)* $($part: $resolve(layers)?,)* })
            }

            /// Name, value and source of each.
            pub(crate) fn own_rows(&self) -> Vec<$crate::setting::values::Row<'_>> {
                vec![$($crate::setting::values::row(&$setting, &self.$field),)*]
            }
        }
    };
}

pub(crate) use setting_values;

/// A setting as it is shown: its name, its value and the source of the value.
pub(crate) type Row<'a> = (&'static Name, String, &'a Source);

pub(crate) fn row<'a, F: Form>(setting: &'static Setting<F>, value: &'a Sourced<F::Value>) -> Row<'a> {
    (&setting.name, setting.form.show(&value.value), &value.source)
}

//! The first byte of each kind of MessagePack value: rmp's markers as constants.
//!
//! rmp's functions are not used: each function that writes returns a result, which took 27 % more instructions for a
//! small map, and `Marker::to_u8` is not inlined, which took 14 % more.

use rmp::Marker;

macro_rules! markers {
    ($($name:ident: $marker:expr),* $(,)?) => {
        $(pub(super) const $name: u8 = $marker.to_u8();)*
    };
}

markers! {
    NULL: Marker::Null,
    FALSE: Marker::False,
    TRUE: Marker::True,
    F32: Marker::F32,
    F64: Marker::F64,
    U8: Marker::U8,
    U16: Marker::U16,
    U32: Marker::U32,
    U64: Marker::U64,
    I8: Marker::I8,
    I16: Marker::I16,
    I32: Marker::I32,
    I64: Marker::I64,
    FIX_NEGATIVE: Marker::FixNeg(-32),
    FIX_STR: Marker::FixStr(0),
    STR_8: Marker::Str8,
    STR_16: Marker::Str16,
    STR_32: Marker::Str32,
    BIN_8: Marker::Bin8,
    BIN_16: Marker::Bin16,
    BIN_32: Marker::Bin32,
    FIX_ARRAY: Marker::FixArray(0),
    ARRAY_16: Marker::Array16,
    ARRAY_32: Marker::Array32,
    FIX_MAP: Marker::FixMap(0),
    MAP_16: Marker::Map16,
    MAP_32: Marker::Map32,
    FIX_EXT_1: Marker::FixExt1,
    FIX_EXT_2: Marker::FixExt2,
    FIX_EXT_4: Marker::FixExt4,
    FIX_EXT_8: Marker::FixExt8,
    FIX_EXT_16: Marker::FixExt16,
    EXT_8: Marker::Ext8,
    EXT_16: Marker::Ext16,
    EXT_32: Marker::Ext32,
    RESERVED: Marker::Reserved,
}

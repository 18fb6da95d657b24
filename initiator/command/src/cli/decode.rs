//! Packed fields of data structures, bit by bit.

use ringfab_spec::BitField;
use serde_json::{Map, Value};

/// A line for each field: its bits, its value and its name.
pub(crate) fn lines(bits: u64, fields: &[BitField]) -> Vec<String> {
    let line = |field: &BitField| {
        let (place, value) = (format!("[{}:{}]", field.high, field.low), format!("{:#x}", field.of(bits)));
        format!("  {place:<7} {value:<6} {}", field.name.replace('_', " "))
    };
    fields.iter().map(line).collect()
}

/// The same for programs: flags are true or false, everything else is a number.
pub(crate) fn value(bits: u64, fields: &[BitField]) -> Value {
    let entry = |field: &BitField| {
        let value = field.of(bits);
        let value = if field.high == field.low { Value::Bool(value != 0) } else { value.into() };
        (field.name.to_owned(), value)
    };
    let all = [("value".to_owned(), Value::from(bits))].into_iter().chain(fields.iter().map(entry));
    Value::Object(all.collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use ringfab_spec::identify::OptionalNvmCommands;
    use ringfab_spec::log::CommandEffects;

    use super::*;

    #[test]
    fn every_field_has_its_bits_its_value_and_its_name() {
        let shown = lines(0x0c, OptionalNvmCommands::FIELDS);
        assert_eq!(shown[0], "  [0:0]   0x0    compare");
        assert_eq!(shown[2], "  [2:2]   0x1    dataset management");
        let effects = lines(0x2_0003, CommandEffects::FIELDS);
        assert!(effects.contains(&"  [18:16] 0x2    cse".to_owned()), "{effects:?}");
        let value = value(0x0c, OptionalNvmCommands::FIELDS);
        assert_eq!((&value["value"], &value["compare"]), (&Value::from(12), &Value::Bool(false)));
        assert_eq!(value["write_zeroes"], Value::Bool(true));
    }
}

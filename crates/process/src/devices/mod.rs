//! The devices of this machine: which of them a child sees. `nvml.rs` reads what they do.

mod nvml;

use std::collections::BTreeMap;

pub(crate) use self::nvml::why_lost;
pub use self::nvml::{Device, Driver, device_metrics, devices, driver};

/// The devices that a process sees, by their numbers or their names (`GPU-…`, `MIG-…`).
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// CUDA numbers devices by their speed by default, and NVML by their place on the bus.
const ORDER: (&str, &str) = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID");

/// The variables by which a child sees one device alone.
pub const DEVICE_VARIABLES: [&str; 2] = [VISIBLE, ORDER.0];

/// What a child is told of its device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceOfChild {
    /// The name by which it calls its device.
    pub name: String,
    /// The variables by which it sees this device alone.
    pub env: BTreeMap<String, String>,
}

/// The device of this name, for a child of this process.
///
/// `cuda:N` is the device number N of those that this process sees. The child sees that device alone, and so calls it
/// `cuda:0`. It is told any other name, such as `cpu`, and nothing else changes.
///
/// # Errors
///
/// If this process sees no such device, or the name begins with `cuda` and is another one.
pub fn device_of_child(name: &str) -> Result<DeviceOfChild, String> {
    let visible = std::env::var(VISIBLE).ok();
    // Without NVML all may exist.
    let count = nvml::count().unwrap_or(u32::MAX);
    child_sees(name, visible.as_deref(), count, std::env::var_os(ORDER.0).is_some())
}

fn child_sees(name: &str, visible: Option<&str>, count: u32, has_order: bool) -> Result<DeviceOfChild, String> {
    let Some(number) = name.strip_prefix("cuda") else {
        return Ok(DeviceOfChild { name: name.to_owned(), env: BTreeMap::new() });
    };
    let index = number.strip_prefix(':').and_then(|number| number.parse::<usize>().ok());
    let index = index.ok_or_else(|| format!("`{name}` is no device: write a name such as \"cuda:0\" or \"cpu\""))?;
    let own = match visible {
        None => index.to_string(),
        Some(visible) => existing(count, visible).nth(index).map_or_else(
            || Err(format!("this process does not see `{name}`: its {VISIBLE} is \"{visible}\"")),
            |own| Ok(own.to_owned()),
        )?,
    };
    let order = (!has_order).then_some(ORDER);
    let env = [(VISIBLE, &*own)].into_iter().chain(order);
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    Ok(DeviceOfChild { name: "cuda:0".to_owned(), env })
}

/// The names of the devices for a stage that takes all that there are: `cuda:0`, `cuda:1` and so on, as far as this
/// process sees them; `cpu` where it sees none, and the log says why.
#[must_use]
pub fn devices_for(stage: &str) -> Vec<String> {
    let visible = std::env::var(VISIBLE).ok();
    let reason = match nvml::count().map(|count| visible_of(count, visible.as_deref())) {
        Ok(0) => "this process sees none".to_owned(),
        Ok(count) => return (0..count).map(|index| format!("cuda:{index}")).collect(),
        Err(reason) => reason,
    };
    tracing::warn!(stage, reason, "no device was found: the stage runs on the CPU");
    vec!["cpu".to_owned()]
}

/// How many of this many devices a process sees.
fn visible_of(count: u32, visible: Option<&str>) -> usize {
    visible.map_or(count as usize, |visible| existing(count, visible).count())
}

/// Those of this many devices that a list names. As for CUDA, it ends at the first one that there is not.
fn existing(count: u32, visible: &str) -> impl Iterator<Item = &str> {
    visible.split(',').map(str::trim).take_while(move |own| match own.parse::<i64>() {
        Ok(number) => (0..i64::from(count)).contains(&number),
        Err(_) => !own.is_empty() && count > 0,
    })
}

/// The only device that a child with these variables sees, if NVML has the same number or name for it.
pub(crate) fn only_device(env: &BTreeMap<String, String>) -> Option<String> {
    only_in_order(env, std::env::var(ORDER.0).ok().as_deref())
}

fn only_in_order(env: &BTreeMap<String, String>, of_node: Option<&str>) -> Option<String> {
    let own = env.get(VISIBLE).filter(|own| !own.is_empty() && !own.contains(','))?;
    let order = env.get(ORDER.0).map(String::as_str).or(of_node);
    (own.parse::<i64>().is_err() || order == Some(ORDER.1)).then(|| own.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the machine that runs the test, which may have devices or none.
    #[test]
    fn a_process_knows_its_own_devices() {
        let count = nvml::count().map(|count| visible_of(count, std::env::var(VISIBLE).ok().as_deref()));
        let expected = match count {
            Ok(count @ 1..) => (0..count).map(|index| format!("cuda:{index}")).collect(),
            _ => vec!["cpu".to_owned()],
        };
        assert_eq!(devices_for("stage"), expected);
        assert_eq!(nvml::count().is_ok(), driver().is_ok());
        assert_eq!(devices().len(), nvml::count().unwrap_or_default() as usize);
        assert_eq!(device_metrics().is_empty(), devices().is_empty());
        assert!(device_metrics().split_inclusive('\n').all(|line| line.contains("callboard_device_")));
        let cpu = DeviceOfChild { name: "cpu".to_owned(), env: BTreeMap::new() };
        assert_eq!(device_of_child("cpu"), Ok(cpu));
        let sees = |own: &str| only_device(&BTreeMap::from([(VISIBLE.to_owned(), own.to_owned())]));
        assert_eq!((sees("GPU-a"), sees("")), (Some("GPU-a".to_owned()), None));
    }

    #[test]
    fn a_child_sees_its_device_alone_and_by_its_number_among_those_of_the_node() {
        let sees = |name, visible| child_sees(name, visible, 6, false).map(|device| (device.name, device.env));
        let alone = |own: &str| {
            let env = [(VISIBLE, own), ORDER].map(|(name, value)| (name.to_owned(), value.to_owned()));
            Ok(("cuda:0".to_owned(), env.into_iter().collect()))
        };
        assert_eq!(sees("cuda:1", None), alone("1"));
        assert_eq!(sees("cuda:1", Some("2, 5")), alone("5"));
        assert_eq!(sees("cuda:0", Some("MIG-8f")), alone("MIG-8f"));
        assert_eq!(sees("cpu", None), Ok(("cpu".to_owned(), BTreeMap::new())));
        let own_order = child_sees("cuda:0", None, 6, true).unwrap();
        assert_eq!(own_order.env.keys().collect::<Vec<_>>(), [VISIBLE]);
        for (name, visible) in [
            ("cuda:2", Some("2,5")),
            ("cuda:0", Some("")),
            ("cuda:0", Some("-1")),
            ("cuda:1", Some("6,1")),
            ("cuda", None),
            ("cuda:x", None),
        ] {
            assert!(sees(name, visible).unwrap_err().contains(&format!("`{name}`")));
        }
    }

    #[test]
    fn a_device_is_known_by_its_number_only_in_the_order_of_nvml() {
        let only = |own: &str, order: Option<&str>, of_node| {
            let env = [Some((VISIBLE, own)), order.map(|order| (ORDER.0, order))];
            let env = env.into_iter().flatten().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            only_in_order(&env, of_node)
        };
        let (bus, fastest) = (Some(ORDER.1), Some("FASTEST_FIRST"));
        assert_eq!([only("1", bus, fastest), only("1", None, bus)], [Some("1".to_owned()), Some("1".to_owned())]);
        assert_eq!([only("1", fastest, bus), only("1", None, fastest), only("1", None, None)], [None, None, None]);
        assert_eq!(only("GPU-8f", None, None).as_deref(), Some("GPU-8f"));
        assert_eq!([only("0,1", bus, None), only("", bus, None)], [None, None]);
    }

    #[test]
    fn the_devices_that_a_process_sees_are_those_of_its_variable_that_exist() {
        let cases =
            [(None, 2), (Some(""), 0), (Some("-1"), 0), (Some("1,0"), 2), (Some("0,7,1"), 1), (Some("GPU-8f"), 1)];
        for (visible, expected) in cases {
            assert_eq!(visible_of(2, visible), expected, "{visible:?}");
            assert_eq!(visible_of(0, visible), 0, "{visible:?}");
        }
    }
}

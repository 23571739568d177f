//! Where the replicas of a stage run that are processes: the device and the variables of each.
//!
//! `devices` gives each device as many replicas as any other. What a file names is checked when it is read; the devices
//! of `"auto"` are looked for when the stage is built.

use std::collections::BTreeMap;
use std::fmt::{Formatter, Result as FmtResult};

use callboard_codec::{Map, Value};
use callboard_core::StageSettings;
use callboard_process::{DEVICE_VARIABLES, device_of_child, devices_for};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::form::{AUTO, Replicas};

/// As many as a stage may have replicas.
const MAX_DEVICES: usize = StageSettings::MAX_REPLICAS;

/// Which devices a stage runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Devices {
    /// Those that the node sees.
    Auto,
    /// At least one.
    Named(Vec<String>),
}

/// Variables of all replicas, or of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Variables {
    /// Of all replicas.
    Same(BTreeMap<String, String>),
    /// Of each replica, at least one.
    Each(Vec<BTreeMap<String, String>>),
}

/// The keys of a stage that say where its replicas run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacementKeys<'k> {
    pub(crate) device: Option<&'k str>,
    pub(crate) devices: Option<&'k Devices>,
    pub(crate) env: &'k Variables,
    pub(crate) settings: &'k BTreeMap<String, Value>,
    pub(crate) spare: bool,
}

/// What each replica has for itself: replica `i` the `i`-th, from the first again if there are more replicas.
#[derive(Debug, Default)]
pub(crate) struct Placement {
    /// The settings that it gets at its start.
    pub(crate) settings: Vec<Map>,
    /// Its variables beside those of all.
    pub(crate) env: Vec<BTreeMap<String, String>>,
}

/// A key with the reason why it cannot be used.
pub(crate) type Refused = (&'static str, String);

impl<'k> PlacementKeys<'k> {
    /// Checks what the file says. Returns how many replicas there are; by default one for each device.
    pub(crate) fn check(&self, replicas: Replicas, is_set: bool) -> Result<Replicas, Refused> {
        let refused = |key, reason: &str| Err((key, reason.to_owned()));
        let is_each = matches!(self.env, Variables::Each(_));
        if self.devices.is_some() && self.device.is_some() {
            return refused("device", "`devices` gives each replica its device: remove one of the two");
        }
        if self.devices.is_some() && self.spare {
            return refused("spare", "a spare would take a device that a replica uses: remove `spare` or `devices`");
        }
        if is_each && self.spare {
            return refused(
                "spare",
                "a spare cannot have the variables of the replica that it will replace: remove it",
            );
        }
        let is_own = |name: &&str| self.env.all().any(|variables| variables.contains_key(*name));
        if let Some(name) = DEVICE_VARIABLES.iter().find(|name| self.devices.is_some() && is_own(name)) {
            return refused("env", &format!("`devices` sets {name} for each replica: remove one of the two"));
        }
        match self.devices {
            Some(Devices::Named(devices)) => self.counted(devices, replicas, is_set),
            // It is checked when the devices are known.
            Some(Devices::Auto) => Ok(replicas),
            None => self.counted(&[], replicas, is_set),
        }
    }

    /// How many replicas there are on these devices, if that is an equal number on each.
    fn counted(&self, devices: &[String], replicas: Replicas, is_set: bool) -> Result<Replicas, Refused> {
        let replicas = if is_set || devices.is_empty() { replicas } else { Replicas::fixed(devices.len()) };
        if !devices.is_empty() && !replicas.max.is_multiple_of(devices.len()) {
            let message = format!(
                "{} replicas on {} devices ({}): write a multiple of {}",
                replicas.max,
                devices.len(),
                devices.join(", "),
                devices.len()
            );
            return Err(("replicas", message));
        }
        if let Variables::Each(each) = self.env
            && each.len() != replicas.max
        {
            let is_alone = !is_set && self.devices == Some(&Devices::Auto) && devices == ["cpu"];
            let why = if is_alone { ", since no device was found" } else { "" };
            let count = replicas.max;
            let message = format!("{} sets of variables for {count} replicas{why}: write one for each", each.len());
            return Err(("env", message));
        }
        Ok(replicas)
    }

    /// How many replicas a stage has on this machine, and where.
    pub(crate) fn resolve(
        &self,
        stage: &str,
        replicas: Replicas,
        is_set: bool,
    ) -> Result<(Replicas, Placement), Refused> {
        let found;
        let devices = match self.devices {
            None => &[],
            Some(Devices::Named(devices)) => &**devices,
            Some(Devices::Auto) => {
                found = devices_for(stage);
                &*found
            }
        };
        let replicas = self.counted(devices, replicas, is_set)?;
        let placed = devices.iter().map(|device| device_of_child(device)).collect::<Result<Vec<_>, _>>();
        let placed = placed.map_err(|reason| ("devices", reason))?;
        let told = |device: Option<&str>| -> Map {
            let device = device.map(|device| ("device".to_owned(), Value::from(device)));
            self.settings.iter().map(|(name, value)| (name.clone(), value.clone())).chain(device).collect()
        };
        let settings = match &*placed {
            [] => Vec::from_iter(Some(told(self.device)).filter(|told| !told.is_empty())),
            placed => placed.iter().map(|device| told(Some(&device.name))).collect(),
        };
        let mut env = match self.env {
            Variables::Same(_) => vec![BTreeMap::new(); placed.len()],
            Variables::Each(each) => each.clone(),
        };
        for (index, own) in env.iter_mut().enumerate().take_while(|_| !placed.is_empty()) {
            own.extend(placed[index % placed.len()].env.clone());
        }
        if env.iter().all(BTreeMap::is_empty) {
            env.clear();
        }
        Ok((replicas, Placement { settings, env }))
    }
}

impl Variables {
    /// The variables that all replicas share.
    #[must_use]
    pub fn of_all(&self) -> BTreeMap<String, String> {
        let mut common = self.all().next().cloned().unwrap_or_default();
        common.retain(|name, value| self.all().all(|own| own.get(name) == Some(value)));
        common
    }

    fn all(&self) -> impl Iterator<Item = &BTreeMap<String, String>> {
        match self {
            Self::Same(variables) => std::slice::from_ref(variables),
            Self::Each(each) => each,
        }
        .iter()
    }
}

impl Default for Variables {
    fn default() -> Self {
        Self::Same(BTreeMap::new())
    }
}

impl<'de> Deserialize<'de> for Devices {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfFile;

        impl<'de> Visitor<'de> for OfFile {
            type Value = Devices;

            fn expecting(&self, formatter: &mut Formatter<'_>) -> FmtResult {
                formatter.write_str("\"auto\" or a list of names such as [\"cuda:0\", \"cuda:1\"]")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Devices, E> {
                if text == AUTO {
                    Ok(Devices::Auto)
                } else {
                    Err(E::invalid_value(serde::de::Unexpected::Str(text), &self))
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, names: A) -> Result<Devices, A::Error> {
                let names = Vec::<String>::deserialize(SeqAccessDeserializer::new(names))?;
                if names.is_empty() || names.len() > MAX_DEVICES || names.iter().any(String::is_empty) {
                    return Err(A::Error::custom(format!("expected from 1 to {MAX_DEVICES} names of devices")));
                }
                Ok(Devices::Named(names))
            }
        }

        deserializer.deserialize_any(OfFile)
    }
}

impl<'de> Deserialize<'de> for Variables {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfFile;

        impl<'de> Visitor<'de> for OfFile {
            type Value = Variables;

            fn expecting(&self, formatter: &mut Formatter<'_>) -> FmtResult {
                formatter.write_str("variables such as { OMP_NUM_THREADS = \"4\" }, or a list of them")
            }

            fn visit_map<A: MapAccess<'de>>(self, variables: A) -> Result<Variables, A::Error> {
                BTreeMap::deserialize(MapAccessDeserializer::new(variables)).map(Variables::Same)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, each: A) -> Result<Variables, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(each)).map(Variables::Each)
            }
        }

        deserializer.deserialize_any(OfFile)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::{Environment, Explanation, Flags, Plan, Target};

    fn plan(keys: &str) -> Result<Plan, String> {
        let text = format!(
            "[[stage]]\nname = \"a\"\nkind = \"python\"\napp = \"app.py:A\"\n{keys}\n\
             [[route]]\npath = \"/a\"\nstages = \"a\"\n"
        );
        let target = Target::File { path: PathBuf::from("f"), text };
        Plan::resolve(target, &Flags::new(), &Environment::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn each_device_has_as_many_replicas_as_any_other() {
        for (keys, most) in [
            ("devices = [\"cuda:0\", \"cuda:1\"]", 2),
            ("devices = [\"cuda:0\", \"cuda:1\"]\nreplicas = 4", 4),
            ("devices = [\"cuda:0\", \"cuda:1\"]\nreplicas = { min = 0, max = 6 }", 6),
            ("devices = \"auto\"\nreplicas = 3", 3),
        ] {
            assert_eq!(plan(keys).unwrap().stages[0].replicas.value.max, most, "{keys}");
        }
    }

    #[test]
    fn one_replica_has_the_device_and_the_variables_of_the_first() {
        for keys in [
            "devices = [\"cuda:0\", \"cuda:1\"]\nreplicas = 4",
            "env = [{ A = \"0\" }, { A = \"1\" }]\nreplicas = 2",
            "devices = [\"cuda:0\", \"cuda:1\"]\nenv = [{ A = \"0\" }, { A = \"1\" }]",
        ] {
            let mut stage = plan(keys).unwrap().stages.remove(0);
            stage.keep_one_replica();
            let keys = stage.kind.placement().unwrap();
            assert_eq!(keys.check(stage.replicas.value, false).unwrap().max, 1);
            assert!(keys.env.of_all().get("A").is_none_or(|value| value == "0"), "{keys:?}");
        }
    }

    #[test]
    fn the_cores_of_each_replica_are_one_or_several() {
        let cores = |text| plan(&format!("affinity = {text}\nreplicas = 2")).map(|plan| Explanation(&plan).to_string());
        assert!(cores("[[0, 1], 2]").unwrap().contains("[[0, 1], 2]"));
        for wrong in ["[[]]", "[[0, 0]]", "[[8192]]", "[]", "[\"0\"]"] {
            assert!(cores(wrong).unwrap_err().contains("affinity: expected the cores of each replica"), "{wrong}");
        }
    }

    #[test]
    fn what_no_replica_can_have_is_refused_with_its_line_and_both_numbers() {
        let two = "devices = [\"cuda:0\", \"cuda:1\"]";
        for (keys, message) in [
            (&*format!("{two}\nreplicas = 3"), "f:6: stage `a`: replicas: 3 replicas on 2 devices (cuda:0, cuda:1)"),
            (&format!("{two}\nspare = true"), "f:6: stage `a`: spare: a spare would take a device"),
            (&format!("{two}\ndevice = \"cpu\""), "f:6: stage `a`: device: `devices` gives each replica its device"),
            (&format!("{two}\nenv = [{{}}]"), "f:6: stage `a`: env: 1 sets of variables for 2 replicas"),
            (&format!("{two}\nenv = {{ CUDA_VISIBLE_DEVICES = \"1\" }}"), "`devices` sets CUDA_VISIBLE_DEVICES"),
            (
                &format!("{two}\nenv = {{ CUDA_DEVICE_ORDER = \"FASTEST_FIRST\" }}"),
                "env: `devices` sets CUDA_DEVICE_ORDER",
            ),
            ("devices = \"all\"", "expected \"auto\" or a list of names"),
            ("devices = []", "expected from 1 to 1024 names of devices"),
            ("env = [{}, {}]\nreplicas = 3", "f:5: stage `a`: env: 2 sets of variables for 3 replicas"),
            ("env = [{}]\nspare = true", "f:6: stage `a`: spare: a spare cannot have the variables"),
            ("env = \"A=b\"", "or a list of them"),
        ] {
            let error = plan(keys).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn all_replicas_have_in_common_what_each_set_of_variables_says_alike() {
        let set =
            |pairs: &[(&str, &str)]| pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let each = Variables::Each(vec![set(&[("A", "1"), ("B", "1")]), set(&[("A", "1"), ("B", "2"), ("C", "3")])]);
        assert_eq!(each.of_all(), set(&[("A", "1")]));
        assert_eq!(Variables::Same(set(&[("A", "1")])).of_all(), set(&[("A", "1")]));
    }

    #[test]
    fn sets_of_variables_for_devices_of_which_none_was_found_are_refused_with_this_reason() {
        let devices = Devices::Auto;
        let env = Variables::Each(vec![BTreeMap::new(); 2]);
        let (device, settings) = (None, &BTreeMap::new());
        let keys = PlacementKeys { device, devices: Some(&devices), env: &env, settings, spare: false };
        let (key, message) = keys.counted(&["cpu".to_owned()], Replicas::fixed(1), false).unwrap_err();
        assert_eq!(key, "env");
        assert!(message.contains("2 sets of variables for 1 replicas, since no device was found"), "{message}");
    }

    #[test]
    fn the_values_of_variables_are_not_shown() {
        let shown =
            Explanation(&plan("env = [{ KEY = \"secret\" }, { OTHER = \"b\" }]\nreplicas = 2").unwrap()).to_string();
        assert!(shown.contains("[{ KEY }, { OTHER }]") && !shown.contains("secret"), "{shown}");
    }
}

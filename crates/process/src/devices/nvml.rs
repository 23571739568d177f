//! What NVIDIA's management library (NVML) tells of the devices of this machine.
//!
//! * **Absent:** the library is loaded when it is first asked. Without it, or without a driver, there are no devices.
//! * **Late:** a thread of its own asks it, since a driver in trouble may take long. Readers wait for [`LONGEST_WAIT`],
//!   and then have what was seen last.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Nvml, cuda_driver_version_major, cuda_driver_version_minor};
use parking_lot::{Condvar, Mutex};

/// What is older is read again.
const MAX_AGE: Duration = Duration::from_secs(1);

/// Far longer than an answer of a driver that works.
const LONGEST_WAIT: Duration = Duration::from_millis(200);

/// A device of this machine. What it does not tell is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Its number, in the order of places on the bus.
    pub index: u32,
    /// Its model.
    pub name: Option<String>,
    /// Its name among all devices, such as `GPU-8932f937-…`.
    pub uuid: Option<String>,
    /// Whether it does not answer any more: it has fallen off the bus.
    pub is_lost: bool,
    /// Its memory in use, in bytes, of all processes.
    pub memory_used: Option<u64>,
    /// Its memory, in bytes.
    pub memory_total: Option<u64>,
    /// For how much of the last moment it worked, in percent.
    pub utilisation: Option<u32>,
    /// Its temperature in degrees Celsius.
    pub temperature: Option<u32>,
}

/// The versions of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// Its own, such as `550.54.15`.
    pub version: String,
    /// The latest CUDA that it runs, such as `12.4`.
    pub cuda: String,
}

/// The driver.
///
/// # Errors
///
/// Why NVML tells nothing: it is not there, or there is no driver that it can speak to.
pub fn driver() -> Result<Driver, String> {
    let nvml = nvml()?;
    let cuda = nvml.sys_cuda_driver_version().map_err(|error| error.to_string())?;
    Ok(Driver {
        version: nvml.sys_driver_version().map_err(|error| error.to_string())?,
        cuda: format!("{}.{}", cuda_driver_version_major(cuda), cuda_driver_version_minor(cuda)),
    })
}

/// How many devices there are, or why NVML does not tell.
pub(super) fn count() -> Result<u32, String> {
    nvml()?.device_count().map_err(|error| error.to_string())
}

/// The devices of this machine; none without NVML.
#[must_use]
pub fn devices() -> Vec<Device> {
    Reader::of_process().read(LONGEST_WAIT)
}

/// The devices as the families `callboard_device_…` of a page of metrics.
#[must_use]
pub fn device_metrics() -> String {
    metrics_of(&devices())
}

/// Why the device with this number or name is lost, if it is. Never waits: it may be known a moment later.
pub(crate) fn why_lost(own: &str) -> Option<String> {
    lost_of(&Reader::of_process().read(Duration::ZERO), own)
}

fn lost_of(devices: &[Device], own: &str) -> Option<String> {
    let is_own = |device: &&Device| {
        device.index.to_string() == own || device.uuid.as_ref().is_some_and(|uuid| uuid.starts_with(own))
    };
    let device = devices.iter().find(is_own).filter(|device| device.is_lost)?;
    Some(format!("its device {} is lost", device.index))
}

/// Reads the devices on a thread of its own.
struct Reader {
    asked: SyncSender<()>,
    seen: &'static Seen,
}

#[derive(Default)]
struct Seen {
    last: Mutex<(Option<Instant>, Vec<Device>)>,
    is_read: Condvar,
}

impl Reader {
    fn of_process() -> &'static Self {
        static READER: OnceLock<Reader> = OnceLock::new();
        static SEEN: OnceLock<Seen> = OnceLock::new();
        READER.get_or_init(|| {
            let (seen, (asked, requests)) = (SEEN.get_or_init(Seen::default), sync_channel(1));
            let mut names = BTreeMap::new();
            let read = move || {
                for () in requests {
                    let mut devices = nvml().map(devices_of).unwrap_or_default();
                    keep_names(&mut names, &mut devices);
                    *seen.last.lock() = (Some(Instant::now()), devices);
                    seen.is_read.notify_all();
                }
            };
            // Without a thread there are no devices: the channel is closed.
            let _ = thread::Builder::new().name("callboard-devices".to_owned()).spawn(read);
            Self { asked, seen }
        })
    }

    fn read(&self, longest_wait: Duration) -> Vec<Device> {
        let mut last = self.seen.last.lock();
        let is_old = |at: Option<Instant>| at.is_none_or(|at| at.elapsed() > MAX_AGE);
        if is_old(last.0) && !matches!(self.asked.try_send(()), Err(std::sync::mpsc::TrySendError::Disconnected(()))) {
            let end = Instant::now() + longest_wait;
            while is_old(last.0) && !self.seen.is_read.wait_until(&mut last, end).timed_out() {}
        }
        last.1.clone()
    }
}

/// The library, or why it tells nothing.
fn nvml() -> Result<&'static Nvml, String> {
    static LOADED: OnceLock<Result<Nvml, NvmlError>> = OnceLock::new();
    LOADED.get_or_init(Nvml::init).as_ref().map_err(|error| match error {
        NvmlError::LibloadingError(_) => "NVML (libnvidia-ml.so.1) is not installed".to_owned(),
        other => other.to_string(),
    })
}

fn devices_of(nvml: &Nvml) -> Vec<Device> {
    (0..nvml.device_count().unwrap_or_default()).map(|index| device_of(nvml, index)).collect()
}

/// Gives devices that do not tell their names any more those that they had: a lost one is found by its name, too.
fn keep_names(names: &mut BTreeMap<u32, String>, devices: &mut [Device]) {
    for device in devices {
        match &device.uuid {
            Some(uuid) => drop(names.insert(device.index, uuid.clone())),
            None => device.uuid = names.get(&device.index).cloned(),
        }
    }
}

fn device_of(nvml: &Nvml, index: u32) -> Device {
    let lost = |error| Device { index, is_lost: matches!(error, NvmlError::GpuLost), ..Device::default() };
    let device = match nvml.device_by_index(index) {
        Ok(device) => device,
        Err(error) => return lost(error),
    };
    let memory = device.memory_info();
    if let Err(NvmlError::GpuLost) = memory {
        return Device { uuid: device.uuid().ok(), ..lost(NvmlError::GpuLost) };
    }
    let memory = memory.ok();
    Device {
        index,
        name: device.name().ok(),
        uuid: device.uuid().ok(),
        is_lost: false,
        memory_used: memory.as_ref().map(|memory| memory.used),
        memory_total: memory.as_ref().map(|memory| memory.total),
        utilisation: device.utilization_rates().ok().map(|rates| rates.gpu),
        temperature: device.temperature(TemperatureSensor::Gpu).ok(),
    }
}

type Family = (&'static str, &'static str, fn(&Device) -> Option<f64>);

const FAMILIES: [Family; 5] = [
    ("memory_used_bytes", "Bytes of memory of a device in use, of all processes", |device| {
        device.memory_used.map(|bytes| bytes as f64)
    }),
    ("memory_total_bytes", "Bytes of memory of a device", |device| device.memory_total.map(|bytes| bytes as f64)),
    ("utilisation_ratio", "The share of the last moment in which a device worked", |device| {
        device.utilisation.map(|percent| f64::from(percent) / 100.0)
    }),
    ("temperature_celsius", "The temperature of a device", |device| device.temperature.map(f64::from)),
    ("lost", "1 if a device does not answer any more, else 0", |device| Some(f64::from(u8::from(device.is_lost)))),
];

fn metrics_of(devices: &[Device]) -> String {
    let mut text = String::new();
    for (name, help, value) in FAMILIES.into_iter().filter(|_| !devices.is_empty()) {
        let _ = writeln!(text, "# HELP callboard_device_{name} {help}\n# TYPE callboard_device_{name} gauge");
        for device in devices {
            let Some(value) = value(device) else { continue };
            let model = device.name.as_deref().unwrap_or_default().replace(['\\', '"', '\n'], " ");
            let _ = writeln!(text, "callboard_device_{name}{{device=\"{}\",name=\"{model}\"}} {value}", device.index);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_again_when_that_is_long_ago_and_waited_for_so_long() {
        let seen: &'static Seen = Box::leak(Box::default());
        let (asked, mut requests) = sync_channel(1);
        let reader = Reader { asked, seen };
        let (begun, wait) = (Instant::now(), Duration::from_millis(20));
        assert!(reader.read(wait).is_empty());
        assert!(begun.elapsed() >= wait, "nobody has answered");
        requests.try_recv().unwrap();
        let last = |at: Option<Instant>, devices: usize| *seen.last.lock() = (at, vec![Device::default(); devices]);
        let long = Duration::from_secs(60);
        last(Some(Instant::now()), 1);
        assert_eq!(reader.read(long).len(), 1);
        assert!(requests.try_recv().is_err(), "it was read just now");

        let long_ago = Instant::now().checked_sub(2 * MAX_AGE);
        last(long_ago, 1);
        assert_eq!(reader.read(Duration::ZERO).len(), 1, "it does not wait");
        let answered = thread::scope(|scope| {
            let (requests, last) = (&mut requests, &last);
            scope.spawn(move || {
                requests.recv().unwrap();
                last(Some(Instant::now()), 2);
                seen.is_read.notify_all();
            });
            reader.read(long)
        });
        assert_eq!(answered.len(), 2);
        // Without the thread that reads them.
        drop(requests);
        last(long_ago, 3);
        assert_eq!(reader.read(long).len(), 3);
        assert!(begun.elapsed() < long);
    }

    #[test]
    fn a_lost_device_is_known_by_its_number_or_its_name() {
        let device = |index: u32, uuid: &str, is_lost| Device {
            index,
            uuid: Some(uuid.to_owned()),
            is_lost,
            ..Device::default()
        };
        let devices = [device(0, "GPU-a1", false), device(1, "GPU-b1", true), Device { index: 2, ..Device::default() }];
        let lost = |own: &str| lost_of(&devices, own);
        for own in ["1", "GPU-b1", "GPU-b"] {
            assert_eq!(lost(own).as_deref(), Some("its device 1 is lost"), "{own}");
        }
        for own in ["0", "GPU-a1", "2", "3", "GPU-c"] {
            assert_eq!(lost(own), None, "{own}");
        }
    }

    #[test]
    fn a_lost_device_keeps_the_name_that_it_had() {
        let mut names = BTreeMap::new();
        let named = |uuid: &str| Device { uuid: Some(uuid.to_owned()), ..Device::default() };
        keep_names(&mut names, &mut [named("GPU-a")]);
        let lost = || [Device { is_lost: true, ..Device::default() }, Device { index: 1, ..Device::default() }];
        for _ in 0..2 {
            let mut devices = lost();
            keep_names(&mut names, &mut devices);
            assert_eq!((devices[0].uuid.as_deref(), devices[1].uuid.as_deref()), (Some("GPU-a"), None));
        }
    }

    #[test]
    fn what_a_device_does_not_tell_is_no_series() {
        let whole = Device {
            index: 1,
            name: Some("A \"card\"".to_owned()),
            memory_used: Some(1 << 30),
            utilisation: Some(50),
            ..Device::default()
        };
        let lost = Device { index: 2, is_lost: true, ..Device::default() };
        let text = metrics_of(&[whole, lost]);
        let labels = "{device=\"1\",name=\"A  card \"}";
        assert!(text.contains(&format!("\ncallboard_device_memory_used_bytes{labels} 1073741824\n")), "{text}");
        assert!(text.contains(&format!("\ncallboard_device_utilisation_ratio{labels} 0.5\n")), "{text}");
        assert!(text.contains("\ncallboard_device_lost{device=\"2\",name=\"\"} 1\n"), "{text}");
        assert!(!text.contains("temperature_celsius{") && !text.contains("used_bytes{device=\"2\""), "{text}");
        assert_eq!(metrics_of(&[]), "");
    }
}

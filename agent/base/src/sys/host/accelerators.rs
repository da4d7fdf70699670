//! Finds the accelerators of this machine, without linking to a driver's library.

use std::{collections::BTreeSet, fs, num::NonZeroU32, path::Path};

use nvml_wrapper::Nvml;

use super::Host;

/// One GPU that workers can use.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Gpu {
    /// Its UUID, such as `GPU-1f2e…`; empty if unknown.
    pub uuid: String,
    /// Its PCI address, as in `/sys/bus/pci/devices`; empty if unknown.
    pub pci_address: String,
}

/// Returns all NVIDIA GPUs of the machine: as the driver's library lists them, else one per device
/// node.
pub(super) fn nvidia() -> Vec<Gpu> {
    // The library is opened at run time, not linked: without a driver this only returns an error.
    from_nvml().unwrap_or_else(|| vec![Gpu::default(); nvidia_devices(Path::new("/dev"))])
}

fn from_nvml() -> Option<Vec<Gpu>> {
    let nvml = Nvml::init().ok()?;
    let gpu = |index| {
        let device = nvml.device_by_index(index).ok()?;
        let pci = device.pci_info().ok()?;
        Some(Gpu {
            uuid: device.uuid().unwrap_or_default(),
            pci_address: format!("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device),
        })
    };
    Some((0..nvml.device_count().ok()?).filter_map(gpu).collect())
}

/// Counts the device nodes `nvidia0`, `nvidia1`, …; a container has only its own.
fn nvidia_devices(folder: &Path) -> usize {
    let is_device = |name: &str| {
        let digits = name.strip_prefix("nvidia");
        digits.is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()))
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_str().is_some_and(is_device)).count()
}

/// Returns the GPUs of `installed` that a value of `CUDA_VISIBLE_DEVICES` selects, in its order.
///
/// As in CUDA, a GPU is named by its number or by the beginning of its UUID, everything after an
/// entry that matches none is ignored, and a list that names one twice selects none.
pub(super) fn visible(text: &str, installed: &[Gpu]) -> Vec<Gpu> {
    let named = |entry: &str| match entry.parse::<usize>() {
        Ok(index) => installed.get(index).cloned(),
        // A part of a GPU, which only the driver can resolve.
        Err(_) if entry.starts_with("MIG-") => {
            Some(Gpu { uuid: entry.to_owned(), ..Gpu::default() })
        }
        Err(_) if entry.starts_with("GPU-") => {
            let known = installed.iter().find(|gpu| gpu.uuid.starts_with(entry)).cloned();
            // Without the driver's library there are no names to compare with.
            let unknown = installed.iter().any(|gpu| gpu.uuid.is_empty());
            known.or_else(|| unknown.then(|| Gpu { uuid: entry.to_owned(), ..Gpu::default() }))
        }
        Err(_) => None,
    };
    let entries: Vec<&str> = text.split(',').map(str::trim).collect();
    let visible: Vec<Gpu> = entries.iter().map_while(|entry| named(entry)).collect();
    let distinct: BTreeSet<&str> = entries[..visible.len()].iter().copied().collect();
    if distinct.len() == visible.len() { visible } else { Vec::new() }
}

/// The number of AMD GPUs of the kernel's compute driver that `HIP_VISIBLE_DEVICES`, or else
/// `CUDA_VISIBLE_DEVICES`, does not hide.
pub(super) fn amd(host: &impl Host) -> usize {
    const NODES: &str = "/sys/class/kfd/kfd/topology/nodes";
    let is_gpu = |node: &String| {
        // A CPU is a node of that topology too, with GPU id zero.
        let id = host.read(&Path::new(NODES).join(node).join("gpu_id"));
        id.is_some_and(|id| id.trim() != "0")
    };
    let installed = host.list(Path::new(NODES)).iter().filter(|node| is_gpu(node)).count();
    let hidden_by = ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"];
    match hidden_by.iter().find_map(|name| host.env(name)) {
        Some(text) => visible(&text.to_string_lossy(), &vec![Gpu::default(); installed]).len(),
        None => installed,
    }
}

/// The number of Intel GPUs that are not integrated into a processor and that `ZE_AFFINITY_MASK`
/// does not hide.
pub(super) fn intel(host: &impl Host) -> Option<NonZeroU32> {
    const DEVICES: &str = "/sys/class/drm";
    const INTEL: &str = "0x8086";
    const PART_OF_A_PROCESSOR: &str = "0000:00:02.0";
    let is_gpu = |name: &String| {
        let device = Path::new(DEVICES).join(name).join("device");
        let vendor = host.read(&device.join("vendor"));
        let slot = host.read(&device.join("uevent")).unwrap_or_default();
        name.starts_with("renderD")
            && vendor.is_some_and(|vendor| vendor.trim() == INTEL)
            && !slot.lines().any(|line| line == format!("PCI_SLOT_NAME={PART_OF_A_PROCESSOR}"))
    };
    let installed = host.list(Path::new(DEVICES)).iter().filter(|name| is_gpu(name)).count();
    let count = match host.env("ZE_AFFINITY_MASK").filter(|mask| !mask.is_empty()) {
        // `1` is a device and `1.0` a part of it.
        Some(mask) => mask.to_string_lossy().split(',').count().min(installed),
        None => installed,
    };
    NonZeroU32::new(u32::try_from(count).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::host::FakeHost;

    fn installed() -> Vec<Gpu> {
        let gpu = |number: usize| Gpu {
            uuid: format!("GPU-{number}aaa"),
            pci_address: format!("0000:0{number}:00.0"),
        };
        (0..4).map(gpu).collect()
    }

    fn numbers(text: &str) -> Vec<char> {
        let number = |gpu: &Gpu| gpu.uuid.chars().nth(4).unwrap();
        visible(text, &installed()).iter().map(number).collect()
    }

    /// CUDA ignores everything from the first entry that matches no device, and keeps the order.
    #[test]
    fn visible_devices() {
        assert_eq!(numbers("2,0, 1"), ['2', '0', '1']);
        assert_eq!(numbers("0,9,1"), ['0']);
        assert_eq!(numbers("GPU-3,GPU-1aaa"), ['3', '1']);
        assert_eq!(numbers("GPU-7"), []);
        for none in ["-1", "", "1,1"] {
            assert_eq!(numbers(none), [], "{none}");
        }
        assert_eq!(visible("MIG-77,MIG-78", &installed()).len(), 2);
    }

    /// Without the driver's library, any UUID is accepted.
    #[test]
    fn names_are_believed_where_nothing_is_known() {
        assert_eq!(visible("GPU-1f2e,GPU-2", &vec![Gpu::default(); 2]).len(), 2);
        assert_eq!(visible("1,2", &vec![Gpu::default(); 2]).len(), 1);
    }

    /// AMD's and Intel's GPUs are counted in the kernel's own lists.
    #[test]
    fn gpus_of_others() {
        let mut host = FakeHost::default();
        for (node, id) in [("0", "0"), ("1", "4711"), ("2", "4712")] {
            host.put(&format!("/sys/class/kfd/kfd/topology/nodes/{node}/gpu_id"), id);
        }
        assert_eq!(amd(&host), 2);
        host.env.insert("HIP_VISIBLE_DEVICES".into(), "1".into());
        assert_eq!(amd(&host), 1);
        for (name, slot) in [("renderD128", "0000:00:02.0"), ("renderD129", "0000:3a:00.0")] {
            host.put(&format!("/sys/class/drm/{name}/device/vendor"), "0x8086\n");
            let uevent = format!("DRIVER=xe\nPCI_SLOT_NAME={slot}\n");
            host.put(&format!("/sys/class/drm/{name}/device/uevent"), &uevent);
        }
        assert_eq!(intel(&host), NonZeroU32::new(1));
    }
}

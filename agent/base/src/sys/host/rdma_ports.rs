//! Reads the state of InfiniBand and RoCE ports.

use std::path::Path;

use ragent_core::hardware::Port;

use super::Host;
use crate::sys::limits;

/// The number of the state ACTIVE in the kernel.
const ACTIVE: &str = "4";

/// Returns the ports of this machine, in the order of their names; `None` if it has none.
pub fn rdma_ports(host: &impl Host) -> Option<Vec<Port>> {
    let folder = Path::new("/sys/class/infiniband");
    let mut ports = Vec::new();
    for device in host.list(folder).into_iter().take(limits::MAX_RDMA) {
        let folder = folder.join(&device).join("ports");
        let numbers = host.list(&folder);
        for number in numbers.iter().take(limits::MAX_RDMA) {
            let read = |file| host.read(&folder.join(number).join(file));
            // Such as `4: ACTIVE`.
            let Some(state) = read("state") else { continue };
            let downed = read("counters/link_downed");
            ports.push(Port {
                name: if numbers.len() == 1 {
                    device.clone()
                } else {
                    format!("{device}/{number}")
                },
                is_active: state.split(':').next().map(str::trim) == Some(ACTIVE),
                link_downed: downed.and_then(|text| text.trim().parse().ok()),
            });
        }
    }
    ports.sort_by(|one, other| one.name.cmp(&other.name));
    (!ports.is_empty()).then_some(ports)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::host::FakeHost;

    /// Ports are named by their device, and by their number if it has several. Files that are not as expected are no state.
    #[test]
    fn ports_are_read() {
        let mut host = FakeHost::default();
        assert_eq!(rdma_ports(&host), None);
        for (port, state, downed) in [
            ("mlx5_0/ports/1", "4: ACTIVE\n", "3\n"),
            ("mlx5_1/ports/1", "1: DOWN\n", "-1\n"),
            ("mlx5_1/ports/2", "\u{1b}[2J", "0\n"),
        ] {
            host.put(&format!("/sys/class/infiniband/{port}/state"), state);
            host.put(&format!("/sys/class/infiniband/{port}/counters/link_downed"), downed);
        }
        host.put("/sys/class/infiniband/mlx5_2/ports/1/rate", "400 Gb/sec\n");
        let port = |name: &str, is_active, link_downed| Port {
            name: name.to_owned(),
            is_active,
            link_downed,
        };
        let expected = vec![
            port("mlx5_0", true, Some(3)),
            port("mlx5_1/1", false, None),
            port("mlx5_1/2", false, Some(0)),
        ];
        assert_eq!(rdma_ports(&host), Some(expected));
    }
}

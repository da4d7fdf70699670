//! Completes the addresses that a node registers with.

use std::net::IpAddr;

use ragent_rendezvous::message::NodeDescription;

use super::limits;

/// Completes the description of a node. `local` is the stream's own end, `addresses` are those of the machine.
pub(super) fn describe(node: &mut NodeDescription, local: IpAddr, addresses: Vec<IpAddr>) {
    let own = local.to_canonical();
    if node.address.is_empty() {
        node.address = own.to_string();
    }
    // The address in use comes first, because it is known to work. A machine may have more addresses than are accepted.
    node.addresses = addresses;
    node.addresses.retain(|address| *address != own);
    node.addresses.insert(0, own);
    node.addresses.truncate(limits::MAX_ADDRESSES);
}

#[cfg(test)]
mod tests {
    use ragent_rendezvous::ids::NodeId;

    use super::*;

    /// Describes a node with a known address, or none.
    fn described(known: &str, local: &str, addresses: Vec<IpAddr>) -> NodeDescription {
        let mut node = NodeDescription {
            agent_port: 1,
            script: "train.py".to_owned(),
            ..NodeDescription::new(NodeId::new("n"), "h", known)
        };
        describe(&mut node, local.parse().unwrap(), addresses);
        node
    }

    /// The address of the stream comes first. It is the node's address unless another one is known.
    #[test]
    fn stream_determines_the_address() {
        let all = || ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap()).to_vec();
        let unknown = described("", "::ffff:10.0.0.2", all());
        assert_eq!(unknown.address, "10.0.0.2");
        let texts: Vec<_> = unknown.addresses.iter().map(IpAddr::to_string).collect();
        assert_eq!(texts, ["10.0.0.2", "10.0.0.1"]);
        assert_eq!(described("node0", "10.0.0.2", all()).address, "node0");
    }

    /// A machine with too many addresses registers with as many as are accepted, including the one in use.
    #[test]
    fn addresses_are_bounded() {
        let many = (0..=u8::MAX).map(|last| IpAddr::from([10, 0, 1, last])).collect();
        let node = described("", "10.0.0.2", many);
        assert_eq!(node.addresses.len(), limits::MAX_ADDRESSES);
        assert_eq!(node.addresses.first().map(IpAddr::to_string), Some("10.0.0.2".to_owned()));
    }
}

//! The structures of the crate `rdma-sys`, some of them written by hand there, lie as rdma-core's
//! headers say. A small C program prints how; what it prints is compared line by line.
#![cfg(not(shuttle))]
#![allow(missing_docs)]

use std::mem::offset_of;
use std::process::Command;

use rdma_sys::*;

fn lines() -> Vec<String> {
    let mut lines = Vec::new();
    macro_rules! size {
        ($t:ident) => {
            lines.push(format!("{} {} {}", stringify!($t), size_of::<$t>(), align_of::<$t>()))
        };
    }
    macro_rules! field {
        ($t:ident, $($rust:tt).+) => { field!($t, $($rust).+ => concat!($(stringify!($rust), ".",)+)) };
        ($t:ident, $($rust:tt).+ => $c:expr) => {
            lines.push(format!("{}.{} {}", stringify!($t), $c.trim_end_matches('.'), offset_of!($t, $($rust).+)))
        };
    }
    size!(ibv_sge);
    field!(ibv_sge, addr);
    field!(ibv_sge, length);
    field!(ibv_sge, lkey);
    size!(ibv_send_wr);
    field!(ibv_send_wr, wr_id);
    field!(ibv_send_wr, next);
    field!(ibv_send_wr, sg_list);
    field!(ibv_send_wr, num_sge);
    field!(ibv_send_wr, opcode);
    field!(ibv_send_wr, send_flags);
    field!(ibv_send_wr, imm_data_invalidated_rkey_union => "imm_data");
    lines.push(format!(
        "ibv_send_wr.wr.rdma.remote_addr {}",
        offset_of!(ibv_send_wr, wr) + offset_of!(rdma_t, remote_addr)
    ));
    lines.push(format!(
        "ibv_send_wr.wr.rdma.rkey {}",
        offset_of!(ibv_send_wr, wr) + offset_of!(rdma_t, rkey)
    ));
    for (name, at) in [
        ("ah", offset_of!(ud_t, ah)),
        ("remote_qpn", offset_of!(ud_t, remote_qpn)),
        ("remote_qkey", offset_of!(ud_t, remote_qkey)),
    ] {
        lines.push(format!("ibv_send_wr.wr.ud.{name} {}", offset_of!(ibv_send_wr, wr) + at));
    }
    size!(ibv_ah_attr);
    field!(ibv_ah_attr, grh.dgid);
    field!(ibv_ah_attr, grh.flow_label);
    field!(ibv_ah_attr, grh.sgid_index);
    field!(ibv_ah_attr, grh.hop_limit);
    field!(ibv_ah_attr, grh.traffic_class);
    field!(ibv_ah_attr, dlid);
    field!(ibv_ah_attr, sl);
    field!(ibv_ah_attr, static_rate);
    field!(ibv_ah_attr, is_global);
    field!(ibv_ah_attr, port_num);
    size!(ibv_sa_path_rec);
    field!(ibv_sa_path_rec, sgid);
    field!(ibv_sa_path_rec, dlid);
    field!(ibv_sa_path_rec, flow_label);
    field!(ibv_sa_path_rec, hop_limit);
    field!(ibv_sa_path_rec, traffic_class);
    field!(ibv_sa_path_rec, sl);
    field!(ibv_sa_path_rec, mtu);
    field!(ibv_sa_path_rec, rate);
    size!(ibv_recv_wr);
    field!(ibv_recv_wr, wr_id);
    field!(ibv_recv_wr, next);
    field!(ibv_recv_wr, sg_list);
    field!(ibv_recv_wr, num_sge);
    size!(ibv_wc);
    field!(ibv_wc, wr_id);
    field!(ibv_wc, status);
    field!(ibv_wc, opcode);
    field!(ibv_wc, byte_len);
    field!(ibv_wc, imm_data_invalidated_rkey_union => "imm_data");
    field!(ibv_wc, wc_flags);
    size!(ibv_qp_init_attr);
    field!(ibv_qp_init_attr, send_cq);
    field!(ibv_qp_init_attr, cap);
    field!(ibv_qp_init_attr, qp_type);
    field!(ibv_qp_init_attr, sq_sig_all);
    size!(ibv_qp_attr);
    field!(ibv_qp_attr, qp_state);
    field!(ibv_qp_attr, min_rnr_timer);
    size!(ibv_device_attr);
    field!(ibv_device_attr, max_qp_wr);
    field!(ibv_device_attr, max_cqe);
    size!(ibv_mr);
    field!(ibv_mr, lkey);
    field!(ibv_mr, rkey);
    size!(ibv_context);
    field!(ibv_context, device);
    field!(ibv_context, ops);
    field!(ibv_context, cmd_fd);
    field!(ibv_context, async_fd);
    field!(ibv_context, ops.poll_cq);
    field!(ibv_context, ops.req_notify_cq);
    field!(ibv_context, ops.post_send);
    field!(ibv_context, ops.post_recv);
    size!(ibv_device);
    field!(ibv_device, transport_type);
    field!(ibv_device, name);
    size!(ibv_comp_channel);
    field!(ibv_comp_channel, fd);
    size!(rdma_cm_id);
    field!(rdma_cm_id, verbs);
    field!(rdma_cm_id, context);
    field!(rdma_cm_id, qp);
    field!(rdma_cm_id, pd);
    field!(rdma_cm_id, port_num);
    field!(rdma_cm_id, route.path_rec);
    field!(rdma_cm_id, route.num_paths);
    field!(rdma_cm_id, route.addr.src_addr_union => "route.addr.src_addr");
    field!(rdma_cm_id, route.addr.dst_addr_union => "route.addr.dst_addr");
    size!(rdma_event_channel);
    field!(rdma_event_channel, fd);
    size!(rdma_cm_event);
    field!(rdma_cm_event, id);
    field!(rdma_cm_event, listen_id);
    field!(rdma_cm_event, event);
    field!(rdma_cm_event, status);
    field!(rdma_cm_event, param);
    size!(rdma_conn_param);
    field!(rdma_conn_param, private_data);
    field!(rdma_conn_param, private_data_len);
    field!(rdma_conn_param, initiator_depth);
    field!(rdma_conn_param, rnr_retry_count);
    field!(rdma_conn_param, qp_num);
    // Numbers that we wrote down, since the header's enumeration has no name (device/rdma/ffi.rs).
    lines.push("RDMA_OPTION_ID_REUSEADDR 1".into());
    lines.push("RDMA_OPTION_ID_AFONLY 2".into());
    lines
}

#[test]
fn structures_lie_as_the_headers_say() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/verbs_layout.c");
    let program = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("verbs_layout");
    let built = Command::new("cc")
        .arg("-o")
        .arg(&program)
        .arg(source)
        .status()
        .expect("there is a C compiler");
    assert!(built.success());
    let output = Command::new(&program).output().expect("it runs");
    let text = String::from_utf8(output.stdout).expect("it prints text");
    let headers: Vec<&str> = text.lines().collect();
    assert_eq!(lines(), headers);
}

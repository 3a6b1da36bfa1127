/* The layout of what crosses between us and rdma-core, as its headers have it: name, size, offsets. */
#include <stddef.h>
#include <stdio.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define SIZE(t) printf("%s %zu %zu\n", #t, sizeof(struct t), _Alignof(struct t))
#define FIELD(t, f) printf("%s.%s %zu\n", #t, #f, offsetof(struct t, f))

int main(void)
{
	SIZE(ibv_sge); FIELD(ibv_sge, addr); FIELD(ibv_sge, length); FIELD(ibv_sge, lkey);
	SIZE(ibv_send_wr); FIELD(ibv_send_wr, wr_id); FIELD(ibv_send_wr, next); FIELD(ibv_send_wr, sg_list);
	FIELD(ibv_send_wr, num_sge); FIELD(ibv_send_wr, opcode); FIELD(ibv_send_wr, send_flags);
	printf("ibv_send_wr.imm_data %zu\n", offsetof(struct ibv_send_wr, imm_data));
	printf("ibv_send_wr.wr.rdma.remote_addr %zu\n", offsetof(struct ibv_send_wr, wr.rdma.remote_addr));
	printf("ibv_send_wr.wr.rdma.rkey %zu\n", offsetof(struct ibv_send_wr, wr.rdma.rkey));
	printf("ibv_send_wr.wr.ud.ah %zu\n", offsetof(struct ibv_send_wr, wr.ud.ah));
	printf("ibv_send_wr.wr.ud.remote_qpn %zu\n", offsetof(struct ibv_send_wr, wr.ud.remote_qpn));
	printf("ibv_send_wr.wr.ud.remote_qkey %zu\n", offsetof(struct ibv_send_wr, wr.ud.remote_qkey));
	SIZE(ibv_ah_attr); FIELD(ibv_ah_attr, grh.dgid); FIELD(ibv_ah_attr, grh.flow_label);
	FIELD(ibv_ah_attr, grh.sgid_index); FIELD(ibv_ah_attr, grh.hop_limit); FIELD(ibv_ah_attr, grh.traffic_class);
	FIELD(ibv_ah_attr, dlid); FIELD(ibv_ah_attr, sl); FIELD(ibv_ah_attr, static_rate); FIELD(ibv_ah_attr, is_global);
	FIELD(ibv_ah_attr, port_num);
	SIZE(ibv_sa_path_rec); FIELD(ibv_sa_path_rec, sgid); FIELD(ibv_sa_path_rec, dlid);
	FIELD(ibv_sa_path_rec, flow_label); FIELD(ibv_sa_path_rec, hop_limit); FIELD(ibv_sa_path_rec, traffic_class);
	FIELD(ibv_sa_path_rec, sl); FIELD(ibv_sa_path_rec, mtu); FIELD(ibv_sa_path_rec, rate);
	SIZE(ibv_recv_wr); FIELD(ibv_recv_wr, wr_id); FIELD(ibv_recv_wr, next); FIELD(ibv_recv_wr, sg_list);
	FIELD(ibv_recv_wr, num_sge);
	SIZE(ibv_wc); FIELD(ibv_wc, wr_id); FIELD(ibv_wc, status); FIELD(ibv_wc, opcode); FIELD(ibv_wc, byte_len);
	printf("ibv_wc.imm_data %zu\n", offsetof(struct ibv_wc, imm_data));
	FIELD(ibv_wc, wc_flags);
	SIZE(ibv_qp_init_attr); FIELD(ibv_qp_init_attr, send_cq); FIELD(ibv_qp_init_attr, cap);
	FIELD(ibv_qp_init_attr, qp_type); FIELD(ibv_qp_init_attr, sq_sig_all);
	SIZE(ibv_qp_attr); FIELD(ibv_qp_attr, qp_state); FIELD(ibv_qp_attr, min_rnr_timer);
	SIZE(ibv_device_attr); FIELD(ibv_device_attr, max_qp_wr); FIELD(ibv_device_attr, max_cqe);
	SIZE(ibv_mr); FIELD(ibv_mr, lkey); FIELD(ibv_mr, rkey);
	SIZE(ibv_context); FIELD(ibv_context, device); FIELD(ibv_context, ops); FIELD(ibv_context, cmd_fd);
	FIELD(ibv_context, async_fd);
	printf("ibv_context.ops.poll_cq %zu\n", offsetof(struct ibv_context, ops.poll_cq));
	printf("ibv_context.ops.req_notify_cq %zu\n", offsetof(struct ibv_context, ops.req_notify_cq));
	printf("ibv_context.ops.post_send %zu\n", offsetof(struct ibv_context, ops.post_send));
	printf("ibv_context.ops.post_recv %zu\n", offsetof(struct ibv_context, ops.post_recv));
	SIZE(ibv_device); FIELD(ibv_device, transport_type); FIELD(ibv_device, name);
	SIZE(ibv_comp_channel); FIELD(ibv_comp_channel, fd);
	SIZE(rdma_cm_id); FIELD(rdma_cm_id, verbs); FIELD(rdma_cm_id, context); FIELD(rdma_cm_id, qp);
	FIELD(rdma_cm_id, pd); FIELD(rdma_cm_id, port_num); FIELD(rdma_cm_id, route.path_rec);
	FIELD(rdma_cm_id, route.num_paths);
	printf("rdma_cm_id.route.addr.src_addr %zu\n", offsetof(struct rdma_cm_id, route.addr.src_addr));
	printf("rdma_cm_id.route.addr.dst_addr %zu\n", offsetof(struct rdma_cm_id, route.addr.dst_addr));
	SIZE(rdma_event_channel); FIELD(rdma_event_channel, fd);
	SIZE(rdma_cm_event); FIELD(rdma_cm_event, id); FIELD(rdma_cm_event, listen_id); FIELD(rdma_cm_event, event);
	FIELD(rdma_cm_event, status); FIELD(rdma_cm_event, param);
	SIZE(rdma_conn_param); FIELD(rdma_conn_param, private_data); FIELD(rdma_conn_param, private_data_len);
	FIELD(rdma_conn_param, initiator_depth); FIELD(rdma_conn_param, rnr_retry_count); FIELD(rdma_conn_param, qp_num);
	printf("RDMA_OPTION_ID_REUSEADDR %d\nRDMA_OPTION_ID_AFONLY %d\n", RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_AFONLY);
	return 0;
}

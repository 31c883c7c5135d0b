"""Names of operations of devices, as profilers of several years write them."""

from __future__ import annotations

import pytest

from gscalar.importers.operation_names import collective_kind, communicates

COMMUNICATE = {
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)": "all_reduce",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL": "all_reduce",
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)": "all_reduce",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL": "reduce_scatter",
    "ncclDevKernel_AllGather_RING_LL": "all_gather",
    "ncclDevKernel_SendRecv": "send_recv",
    "ncclDevKernel_Broadcast_RING_LL": "broadcast",
    "ncclDevKernel_Reduce_Sum_f32_RING_LL": "reduce",
    "ncclDevKernel_Generic_4": None,
    "void rcclGenericKernel<1, false>(ncclDevComm*)": None,
    "deep_ep::intranode::dispatch<8>": None,
    "all-reduce.17": "all_reduce",
    "%all-gather-start.2 = (f32[8]) all-gather-start(f32[1] %p)": "all_gather",
    "reduce-scatter-done": "reduce_scatter",
    "ragged-all-to-all.1": "all_to_all",
    "collective-permute-start.3": "permute",
    "send.1": "send",
    "recv-done.4": "recv",
}
COMPUTE = ["fusion.12", "all-reduce-scatter-fusion", "sgemm_128x64", "sender_kernel", "send_data", "reduce.3", "copy.4"]


@pytest.mark.parametrize(("name", "want"), COMMUNICATE.items())
def test_what_exchanges_data_is_known_and_its_kind_only_where_it_is_said(name: str, want: str | None) -> None:
    assert communicates(name)
    assert collective_kind(name) == want


@pytest.mark.parametrize("name", COMPUTE)
def test_what_only_sounds_like_it_does_not_communicate(name: str) -> None:
    assert not communicates(name)

"""Gradient rows of resampling. Resize is linear in x: slopes of the stock op are exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from support.gradient_forwards import of_stock
from support.gradients import Row, normals, single

LINE, IMAGE, CUBE, FLAT = normals(31, (2, 2, 5), (1, 2, 4, 5), (1, 1, 3, 2, 4), (4, 5))
COORDINATES = (
    "half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "asymmetric", "align_corners",
)  # fmt: skip
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def resized(
    name: str,
    x: np.ndarray[Any, Any] = IMAGE,
    scales: Sequence[float] = (),
    sizes: Sequence[int] = (),
    roi: Sequence[float] = (),
    fed: bool = False,
    **attrs: Any,
) -> Row:
    """``fed``: scales or sizes come from outside."""
    to = {"scales": np.array(scales, np.float32), "sizes": np.array(sizes, np.int64)}
    used = {key: value for key, value in to.items() if value.size}
    more = {"roi": np.array(roi, np.float32)} if roi else {}
    reads = f"x {'roi' if roi else '_'} {'scales' if scales else '_ sizes'}"

    inputs = {"x": x, **(used if fed else {})}
    constants = {**more, **({} if fed else used)}
    expected = of_stock("Resize", reads=reads, constants=constants, moved=("x",), **attrs)
    return single(
        name,
        inputs,
        reads,
        attrs=attrs,
        constants=constants,
        expected=expected,
        wanted=("x",),
        sized=("scales", "sizes"),
    )


ROWS: list[Row] = [
    resized("Resize", scales=(1, 1, 2, 3)),
    *(
        resized(
            f"Resize:{mode} {place} {form}", mode=mode, coordinate_transformation_mode=place, **to
        )
        for mode in ("nearest", "linear", "cubic")
        for place in COORDINATES
        for form, to in (("up", {"scales": (1, 1, 2.5, 1.7)}), ("down", {"sizes": (1, 2, 3, 2)}))
    ),
    *(
        resized(
            f"Resize:{rounding} {form}",
            nearest_mode=rounding,
            scales=scales,
            coordinate_transformation_mode=place,
        )
        for rounding in ROUNDINGS
        for place in ("half_pixel", "asymmetric")
        for form, scales in ((f"{place} up", (1, 1, 2, 2)), (f"{place} other", (1, 1, 1.5, 0.7)))
    ),
    resized("Resize:tiles by sizes", sizes=(1, 2, 8, 15)),
    resized("Resize:1-D", LINE, (1, 1, 3)),
    resized("Resize:1-D linear", LINE, sizes=(2, 2, 8), mode="linear"),
    resized("Resize:3-D", CUBE, (1, 1, 2, 1, 2)),
    resized("Resize:3-D linear", CUBE, (1, 1, 2, 1.5, 0.5), mode="linear"),
    resized("Resize:2-D linear", FLAT, (2, 0.6), mode="linear"),
    resized("Resize:channels", scales=(1, 2, 1, 1), mode="nearest"),
    resized("Resize:axes", scales=(2, 1.5), axes=[3, 2], mode="nearest"),
    resized("Resize:negative axes", scales=(1.5,), axes=[-1], mode="linear"),
    resized("Resize:fed scales", scales=(1, 1, 1.5, 2), fed=True, mode="linear"),
    resized("Resize:fed sizes", sizes=(1, 2, 3, 7), fed=True, mode="linear"),
    resized("Resize:antialias", scales=(1, 1, 0.5, 0.6), mode="linear", antialias=1),
    resized("Resize:antialias cubic", scales=(1, 1, 0.5, 0.6), mode="cubic", antialias=1),
    resized(
        "Resize:exclude_outside",
        scales=(1, 1, 1.4, 2),
        mode="cubic",
        exclude_outside=1,
        cubic_coeff_a=-0.5,
    ),
    *(
        resized(
            f"Resize:crop {mode}",
            sizes=(1, 2, 5, 4),
            mode=mode,
            roi=(0, 0, 0.2, -0.3, 1, 1, 0.9, 1.2),
            coordinate_transformation_mode="tf_crop_and_resize",
            extrapolation_value=3.0,
        )
        for mode in ("nearest", "linear")
    ),
    *(
        resized(
            f"Resize:{policy}",
            sizes=(6, 9),
            axes=[2, 3],
            mode="linear",
            keep_aspect_ratio_policy=policy,
        )
        for policy in ("not_larger", "not_smaller")
    ),
    single("DepthToSpace", {"x": normals(32, (2, 8, 2, 3))[0]}, attrs={"blocksize": 2}),
    single(
        "DepthToSpace:CRD",
        {"x": normals(32, (2, 8, 2, 3))[0]},
        attrs={"blocksize": 2, "mode": "CRD"},
    ),
    single("SpaceToDepth", {"x": normals(32, (2, 2, 4, 6))[0]}, attrs={"blocksize": 2}),
]

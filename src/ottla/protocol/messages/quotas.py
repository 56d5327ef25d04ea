"""DescribeClientQuotas and AlterClientQuotas: limits per user and client."""

from ottla.protocol.schema import (
    array,
    boolean,
    float64,
    int8,
    int16,
    int32,
    message,
    string,
    struct,
    wire,
)


@struct
class QuotaFilterComponent:
    entity_type: str = wire(string, "0+")
    match_type: int = wire(int8, "0+")
    match: str | None = wire(string, "0+", nullable="0+")


@message(versions="0-1", flexible="1+")
class DescribeClientQuotasRequest:
    """Find quotas by user, client id or address."""

    components: list[QuotaFilterComponent] = wire(array(QuotaFilterComponent), "0+")
    strict: bool = wire(boolean, "0+")


@struct
class QuotaEntity:
    entity_type: str = wire(string, "0+")
    entity_name: str | None = wire(string, "0+", nullable="0+")


@struct
class QuotaValue:
    key: str = wire(string, "0+")
    value: float = wire(float64, "0+")


@struct
class DescribedQuotaEntry:
    entity: list[QuotaEntity] = wire(array(QuotaEntity), "0+")
    values: list[QuotaValue] = wire(array(QuotaValue), "0+")


@message(versions="0-1", flexible="1+")
class DescribeClientQuotasResponse:
    """Quotas by the entity they apply to."""

    throttle_time_ms: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+")
    entries: list[DescribedQuotaEntry] | None = wire(
        array(DescribedQuotaEntry), "0+", nullable="0+"
    )


@struct
class QuotaOperation:
    key: str = wire(string, "0+")
    value: float = wire(float64, "0+")
    remove: bool = wire(boolean, "0+")


@struct
class AlterQuotaEntry:
    entity: list[QuotaEntity] = wire(array(QuotaEntity), "0+")
    ops: list[QuotaOperation] = wire(array(QuotaOperation), "0+")


@message(versions="0-1", flexible="1+")
class AlterClientQuotasRequest:
    """Set or remove quotas."""

    entries: list[AlterQuotaEntry] = wire(array(AlterQuotaEntry), "0+")
    validate_only: bool = wire(boolean, "0+")


@struct
class AlterQuotaResult:
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+")
    entity: list[QuotaEntity] = wire(array(QuotaEntity), "0+")


@message(versions="0-1", flexible="1+")
class AlterClientQuotasResponse:
    """The result for each entity."""

    throttle_time_ms: int = wire(int32, "0+")
    entries: list[AlterQuotaResult] = wire(array(AlterQuotaResult), "0+")

"""Generated from proto/feddrm/v1 by `make proto`; never edited by hand."""

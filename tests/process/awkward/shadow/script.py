import decimal

print(hasattr(decimal, "SHADOW"), hasattr(decimal, "Decimal"))

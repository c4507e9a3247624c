// SPDX-License-Identifier: Apache-2.0
// Python's arithmetic on integers and floats; the expected figures were computed with Python 3.11.
#include "sim/policies/python_number.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "dlsim/error.h"
#include "sim/base/quantity.h"

namespace dlsim::sim {
namespace {

using BigInt = PythonNumber::BigInt;

PythonNumber Int(const BigInt& value) { return PythonNumber::Int(value); }
PythonNumber Float(double value) { return PythonNumber::Float(value); }
BigInt Power(int base, unsigned exponent) { return pow(BigInt(base), exponent); }

// "int 3", "float 0x1.8000000000000p+1" or "Type: message".
std::string Outcome(const std::function<PythonNumber()>& expression) {
  try {
    const PythonNumber number = expression();
    return number.is_int() ? "int " + number.Repr() : "float " + HexFloat(number.ToDouble());
  } catch (const PythonError& error) {
    return error.type + ": " + error.message;
  }
}

std::string Product(const PythonNumber& a, const PythonNumber& b) {
  return Outcome([&] { return a * b; });
}

std::string Quotient(const PythonNumber& a, const PythonNumber& b) {
  return Outcome([&] { return a / b; });
}

constexpr const char* kIntTooLarge = "OverflowError: int too large to convert to float";
constexpr const char* kQuotientTooLarge =
    "OverflowError: integer division result too large for a float";

TEST(PythonNumber, ReadsTheTypeFromTheText) {
  const auto read = [](const char* text) {
    return Outcome([&] { return ParsePythonNumber(text, "x"); });
  };
  EXPECT_EQ(read("65536"), "int 65536");
  EXPECT_EQ(read("65536.0"), "float 0x1.0000000000000p+16");
  EXPECT_EQ(read("2e4"), "float 0x1.3880000000000p+14");
  EXPECT_EQ(read("2^16"), "int 65536");
  EXPECT_EQ(read("-2^3"), "int -8");
  EXPECT_EQ(read("2^-1"), "float 0x1.0000000000000p-1");
  EXPECT_EQ(read("0x1.8p+3"), "float 0x1.8000000000000p+3");
  EXPECT_EQ(read("0xFF"), "int 255");
  EXPECT_EQ(read("-0xff"), "int -255");
  EXPECT_EQ(read("+3"), "int 3");
  EXPECT_EQ(read("010"), "int 10");
  EXPECT_EQ(read("-007"), "int -7");
  EXPECT_EQ(read("000"), "int 0");
  EXPECT_EQ(read(".5"), "float 0x1.0000000000000p-1");
  EXPECT_EQ(read("9007199254740993"), "int 9007199254740993");
  EXPECT_EQ(read("36472996377170786403"), "int 36472996377170786403");
  EXPECT_EQ(Outcome([] { return ParsePythonNumber("2^1023", "x") / Int(Power(2, 1000)); }),
            "float 0x1.0000000000000p+23");
  EXPECT_THROW(ParsePythonNumber("lots", "x"), Error);
  EXPECT_THROW(ParsePythonNumber("1e400", "x"), Error);
}

TEST(PythonNumber, KeepsIntegersExactAtAnySize) {
  EXPECT_EQ(Product(Int(3), Int(Power(3, 40))), "int " + Power(3, 41).str());
  EXPECT_EQ(Power(3, 41).str(), "36472996377170786403");
  EXPECT_EQ(Product(Int(-3), Int(5)), "int -15");
  EXPECT_EQ(Int(Power(2, 24) * Power(3, 40)).ToDouble(), 0x1.517168a4523fdp+87);
  EXPECT_EQ(Int(Power(2, 24) * Power(3, 630)).ToDouble(), 0x1.70b7e695e1786p+1022);
  EXPECT_EQ(Int(Power(3, 700)).ToDouble(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(Int(-Power(3, 700)).ToDouble(), -std::numeric_limits<double>::infinity());
}

TEST(PythonNumber, RoundsIntegersToFloatsToEven) {
  const PythonNumber one = Float(1);
  EXPECT_EQ(Product(Int(Power(2, 53) + 1), one), "float 0x1.0000000000000p+53");
  EXPECT_EQ(Product(Int(Power(2, 53) + 3), one), "float 0x1.0000000000002p+53");
  EXPECT_EQ(Product(one, Int(Power(2, 54) + 2)), "float 0x1.0000000000000p+54");
  EXPECT_EQ(Product(one, Int(Power(2, 54) + 6)), "float 0x1.0000000000002p+54");
  EXPECT_EQ(Int(Power(2, 200) + Power(2, 147)).ToDouble(), 0x1p200);
  EXPECT_EQ(Int(Power(2, 200) + Power(2, 147) + 1).ToDouble(), 0x1.0000000000001p+200);
  const BigInt tie_with_infinity = Power(2, 1024) - Power(2, 970);
  EXPECT_EQ(Product(Int(tie_with_infinity - 1), one), "float 0x1.fffffffffffffp+1023");
  EXPECT_EQ(Product(Int(tie_with_infinity), one), kIntTooLarge);
  EXPECT_EQ(Quotient(Int(tie_with_infinity), one), kIntTooLarge);
  EXPECT_EQ(Product(Float(1.5), Int(3)), "float 0x1.2000000000000p+2");
}

TEST(PythonNumber, DividesIntegersWithOneRounding) {
  EXPECT_EQ(Quotient(Int(65536), Int(2)), "float 0x1.0000000000000p+15");
  EXPECT_EQ(Quotient(Int(1), Int(3)), "float 0x1.5555555555555p-2");
  EXPECT_EQ(Quotient(Int(-7), Int(2)), "float -0x1.c000000000000p+1");
  EXPECT_EQ(Quotient(Int(0), Int(5)), "float 0x0.0p+0");
  EXPECT_EQ(Quotient(Int(Power(2, 60) + 1), Int(3)), "float 0x1.5555555555555p+58");
  EXPECT_EQ(Quotient(Int(Power(2, 1024) - 1), Int(Power(2, 1023))), "float 0x1.0000000000000p+1");
  EXPECT_EQ(Quotient(Int(Power(3, 650)), Int(Power(3, 649))), "float 0x1.8000000000000p+1");
  // Just above and just below a tie.
  const BigInt divisor = Power(3, 50);
  const BigInt tie = (Power(2, 53) + 1) * divisor;
  EXPECT_EQ(Quotient(Int(tie + 1), Int(divisor)), "float 0x1.0000000000001p+53");
  EXPECT_EQ(Quotient(Int(tie), Int(divisor)), "float 0x1.0000000000000p+53");
  EXPECT_EQ(Quotient(Int(tie - 1), Int(divisor)), "float 0x1.0000000000000p+53");
  EXPECT_EQ(Quotient(Int(Power(2, 4000)), Int(1)), kQuotientTooLarge);
  EXPECT_EQ(Quotient(Int(Power(3, 700)), Int(Power(3, 10))), kQuotientTooLarge);
}

TEST(PythonNumber, RoundsSubnormalQuotientsOnce) {
  EXPECT_EQ(Quotient(Int(1), Int(3 * Power(2, 1023))), "float 0x0.2aaaaaaaaaaabp-1022");
  EXPECT_EQ(Quotient(Int(1), Int(Power(2, 1023) + Power(2, 971))), "float 0x0.8000000000000p-1022");
  EXPECT_EQ(Quotient(Int(3), Int(Power(2, 1074))), "float 0x0.0000000000003p-1022");
  EXPECT_EQ(Quotient(Int(1), Int(Power(2, 1075))), "float 0x0.0p+0");
  EXPECT_EQ(Quotient(Int(3), Int(Power(2, 1076))), "float 0x0.0000000000001p-1022");
  EXPECT_EQ(Quotient(Int(1), Int(Power(2, 1076))), "float 0x0.0p+0");
  // A rounding to 53 bits on the way would give 0x0.0000000000002p-1022.
  EXPECT_EQ(Quotient(Int(3 * Power(2, 59) - 1), Int(Power(2, 1134))),
            "float 0x0.0000000000001p-1022");
}

TEST(PythonNumber, RaisesAsPythonDoes) {
  EXPECT_EQ(Quotient(Int(7), Int(0)), "ZeroDivisionError: division by zero");
  EXPECT_EQ(Quotient(Float(7), Int(0)), "ZeroDivisionError: float division by zero");
  EXPECT_EQ(Quotient(Int(7), Float(0)), "ZeroDivisionError: float division by zero");
  const auto to_int = [](double value) {
    return Outcome([&] {
      CheckConvertsToInt(Float(value));
      return Int(0);
    });
  };
  EXPECT_EQ(to_int(1e300), "int 0");
  EXPECT_EQ(to_int(HUGE_VAL), "OverflowError: cannot convert float infinity to integer");
  EXPECT_EQ(to_int(NAN), "ValueError: cannot convert float NaN to integer");
}

TEST(PythonNumber, TestsForMultiplesAsModuloDoes) {
  const auto divides = [](const PythonNumber& divisor, int64_t count) {
    return Outcome([&] { return Int(divisor.Divides(count) ? 1 : 0); });
  };
  EXPECT_EQ(divides(Int(3), 6), "int 1");
  EXPECT_EQ(divides(Int(3), 7), "int 0");
  EXPECT_EQ(divides(Int(-3), 6), "int 1");
  EXPECT_EQ(divides(Int(-3), 7), "int 0");
  EXPECT_EQ(divides(Float(2.5), 5), "int 1");
  EXPECT_EQ(divides(Float(-2.5), 5), "int 1");
  EXPECT_EQ(divides(Float(2.5), 6), "int 0");
  EXPECT_EQ(divides(Int(0), 5), "ZeroDivisionError: integer modulo by zero");
  EXPECT_EQ(divides(Float(0), 5), "ZeroDivisionError: float modulo");
}

TEST(PythonNumber, ComparesIntegersWithFloatsExactly) {
  EXPECT_FALSE(Int(Power(2, 53) + 1) == Float(0x1p53));
  EXPECT_TRUE(Float(0x1p53) < Int(Power(2, 53) + 1));
  EXPECT_TRUE(Int(3) == Float(3));
  EXPECT_TRUE(Int(3) < Float(3.5));
  EXPECT_TRUE(Float(-3.5) < Int(-3));
  EXPECT_TRUE(Int(-4) < Float(-3.5));
  EXPECT_TRUE(Int(Power(10, 400)) < Float(HUGE_VAL));
  EXPECT_TRUE(Float(-HUGE_VAL) < Int(-Power(10, 400)));
  EXPECT_FALSE(Int(1) < Float(NAN));
  EXPECT_FALSE(Float(NAN) < Int(1));
  EXPECT_TRUE(Float(0x1p-1074) < Int(1));
}

TEST(PythonNumber, TakesTheFirstOfEqualMaxima) {
  EXPECT_TRUE(Max(Int(1), Float(1)).is_int());
  EXPECT_FALSE(Max(Float(1), Int(1)).is_int());
  EXPECT_EQ(Max(Float(0.5), Int(1)).Repr(), "1");
  EXPECT_TRUE(std::isnan(Max(Float(NAN), Int(1)).ToDouble()));
  EXPECT_EQ(Max(Int(1), Float(NAN)).Repr(), "1");
}

TEST(PythonNumber, BoundsTheSizeOfIntegersWithoutEffect) {
  PythonNumber number = Int(3);
  for (int i = 0; i < 100000; ++i) number = number * Int(-3);
  EXPECT_LT(number.Repr().size(), 1300U);
  EXPECT_EQ(Product(number, Float(0.5)), kIntTooLarge);
  EXPECT_EQ(Quotient(number, Int(Power(2, 1023))), kQuotientTooLarge);
  EXPECT_TRUE(Float(1e308) < number);
  EXPECT_EQ(Product(number, Int(0)), "int 0");
}

TEST(PythonNumber, ShowsIntegersAsIntegersUpTo2To53) {
  EXPECT_EQ(std::get<int64_t>(FieldValue(Int(Power(2, 53)))), int64_t{1} << 53);
  EXPECT_EQ(std::get<double>(FieldValue(Int(Power(2, 54)))), 0x1p54);
  EXPECT_EQ(std::get<double>(FieldValue(Float(65536))), 65536.0);
}

TEST(PythonNumber, KeepsItsTypeWhenSetToAWholeNumber) {
  PythonNumber whole = Int(2);
  EXPECT_TRUE(SetFromNumber(0x1.8p70, whole));
  EXPECT_TRUE(whole.is_int());
  EXPECT_EQ(whole.ToDouble(), 0x1.8p70);
  EXPECT_TRUE(SetFromNumber(0.5, whole));
  EXPECT_FALSE(whole.is_int());
  EXPECT_TRUE(SetFromNumber(8, whole));
  EXPECT_FALSE(whole.is_int());
}

}  // namespace
}  // namespace dlsim::sim

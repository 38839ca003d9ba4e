#pragma once

#include <string>

#include "report.hpp"

namespace limits {

void measure_gemm_1b(Report& report);
void measure_gemm_3b(Report& report);
void measure_gemm_8b(Report& report);
void measure_fp8(Report& report);
void measure_hbm(Report& report);
void measure_launch(Report& report);
void measure_pinned(Report& report);
void measure_adamw(Report& report);
void measure_disk(Report& report, const std::string& folder);

}  // namespace limits
